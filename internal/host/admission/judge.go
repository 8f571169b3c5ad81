package admission

import (
	"fmt"

	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// standing is what becomes of a process that asks for a rank.
type standing int

const (
	waits           standing = iota // for what may clear the way
	refused                         // with the code and text of the verdict
	attachedAlready                 // this very process holds the rank: it gets its arena again, or is refused
	welcomed                        // it may build its model
	claims                          // the rank, by way of the leader
)

// verdict is a standing, and the code and text of a refusal.
type verdict struct {
	to   standing
	code int32
	text string
}

func refuses(code int32, format string, values ...any) verdict {
	return verdict{refused, code, fmt.Sprintf(format, values...)}
}

// judge decides what becomes of a process, by what is known on node self. informed is whether a leader was reached since the daemon's
// start. job is the one that the process names, nil where there is none. launching is whether a launcher here is creating it.
func (p *process) judge(self replica.NodeName, informed bool, job Job, launching bool) verdict {
	switch {
	case p.welcomed && p.attach == 0:
		return verdict{} // it waits for no answer, so a refusal would go unheard: it is judged when it asks for its arena
	case p.hello.ABI != wire.RankABI:
		return refuses(wire.CodeVersion, "libreplicad speaks version %d of the rank protocol, this daemon %d: use the library of this "+
			"daemon's release", p.hello.ABI, wire.RankABI)
	case !informed:
		return verdict{}
	case job == nil && launching:
		return verdict{}
	case job == nil:
		return refuses(wire.CodeRefused, "no job %q: start it with `replicad run --job %s ...`", p.hello.Job, p.hello.Job)
	}
	record, rank := job.Record(), p.hello.Rank
	if text := room.Foreign(record, p.peer.UID()); text != "" {
		return refuses(wire.CodeRefused, "%s", text)
	}
	if text := otherPlace(record, p); text != "" {
		return refuses(wire.CodeRefused, "%s", text)
	}
	if held, is := job.Held(rank); is && held.Alive {
		switch {
		case held.PID == p.peer.PID() && held.Start == p.peer.StartTime():
			return verdict{attachedAlready, wire.CodeRefused, fmt.Sprintf("process %d has attached as rank %d of job %q already: use one "+
				"handle", held.PID, rank, record.Name)}
		case room.Superseded(record, rank, held.Incarnation):
			return verdict{} // it is on its way out
		}
		return refuses(wire.CodeRefused, "rank %d of job %q is held by live process %d on this node: stop it first, or start another rank",
			rank, record.Name, held.PID)
	}
	if c := record.Ranks[rank]; c.Incarnation != 0 && c.Node != self && !recovery.Vacated(record, rank) {
		return refuses(wire.CodeRefused, "rank %d of job %q is held by incarnation %d on node %s: it is not free",
			rank, record.Name, c.Incarnation, c.Node)
	}
	if !p.welcomed {
		return verdict{to: welcomed}
	}
	return verdict{to: claims}
}

// otherPlace is why the place that a process takes itself to have is none of the job. Empty: it may be one.
func otherPlace(job *replica.Job, p *process) string {
	h := p.hello
	want, group := "none", "a group that it has not named"
	if uint32(h.Rank) < job.Layout.World {
		want = fmt.Sprint(job.Layout.Groups[h.Rank])
	}
	if h.Group != replica.NoGroup {
		group = fmt.Sprintf("group %d", h.Group)
	}
	other := h.Group != replica.NoGroup && job.Naming == nil && h.World == job.Layout.World && want != "none" &&
		h.Group != job.Layout.Groups[h.Rank]
	switch {
	case h.World != job.Layout.World || want == "none" || other:
		return fmt.Sprintf("rank %d of %d in %s: job %q has %d ranks, and that rank's group is %s",
			h.Rank, h.World, group, job.Name, job.Layout.World, want)
	case h.Group == replica.NoGroup && p.attach != 0:
		return fmt.Sprintf("rank %d of job %q does not say its replica group: name it before attaching (rp_set_group; replicad.Session "+
			"finds it in the model)", h.Rank, job.Name)
	}
	return ""
}
