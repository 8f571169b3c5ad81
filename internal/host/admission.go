package host

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

// verdict is a standing, and what a refusal says.
type verdict struct {
	to   standing
	code int32
	text string
}

func refuses(code int32, format string, values ...any) verdict {
	return verdict{refused, code, fmt.Sprintf(format, values...)}
}

// judge says what becomes of a process, by what is known on node self: informed, whether a leader was reached since the daemon's start; lj, the
// job that the process names, if there is one; launching, whether a launcher here is creating it.
func (a *attaching) judge(self replica.NodeName, informed bool, lj *localJob, launching bool) verdict {
	switch {
	case a.welcomed && a.attach == 0:
		return verdict{} // it waits for no answer, so a refusal would go unheard: it is judged when it asks for its arena
	case a.hello.ABI != wire.RankABI:
		return refuses(wire.CodeVersion, "libreplicad speaks version %d of the rank protocol, this daemon %d: use the library of this daemon's release", a.hello.ABI, wire.RankABI)
	case !informed:
		return verdict{}
	case lj == nil && launching:
		return verdict{}
	case lj == nil:
		return refuses(wire.CodeRefused, "no job %q: start it with `replicad run --job %s ...`", a.hello.Job, a.hello.Job)
	}
	job, rank := lj.job, a.hello.Rank
	if text := room.Foreign(job, a.peer.UID()); text != "" {
		return refuses(wire.CodeRefused, "%s", text)
	}
	if text := otherPlace(job, a); text != "" {
		return refuses(wire.CodeRefused, "%s", text)
	}
	if lr := lj.ranks[rank]; lr != nil && lr.alive() {
		switch {
		case lr.pid == a.peer.PID() && lr.start == a.peer.StartTime():
			return verdict{attachedAlready, wire.CodeRefused, fmt.Sprintf("process %d has attached as rank %d of job %q already: use one handle", lr.pid, rank, job.Name)}
		case lr.superseded(job):
			return verdict{} // it is on its way out
		}
		return refuses(wire.CodeRefused, "rank %d of job %q is held by live process %d on this node: stop it first, or start another rank", rank, job.Name, lr.pid)
	}
	if c := job.Ranks[rank]; c.Incarnation != 0 && c.Node != self && !recovery.Vacated(job, rank) {
		return refuses(wire.CodeRefused, "rank %d of job %q is held by incarnation %d on node %s: it is not free", rank, job.Name, c.Incarnation, c.Node)
	}
	if !a.welcomed {
		return verdict{to: welcomed}
	}
	return verdict{to: claims}
}
