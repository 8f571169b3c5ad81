package job

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/replica"
)

// Here is who and what of a job is on the node. It knows nothing of the job's record.
type Here struct {
	id      replica.JobID
	Ranks   map[replica.Rank]*rank.Rank
	Retired []*holding.Arena // of ranks that live elsewhere now, or of an earlier geometry: holders until a newer commit
	Mirrors *mirrors.Held    // parts held for other nodes' ranks: the room's
}

// Held is a rank as processes on their way see it.
func (h *Here) Held(r replica.Rank) (is admission.Rank, known bool) {
	lr := h.Ranks[r]
	if lr == nil {
		return is, false
	}
	return admission.Rank{Incarnation: lr.Incarnation, Arena: lr.Arena, PID: lr.PID, Start: lr.Start, Peer: lr.Peer, Alive: lr.Alive(),
		Initial: lr.Initial, Finishing: lr.Finishing > 0}, true
}

// Retire makes a rank's arena a holder without a rank.
func (h *Here) Retire(r replica.Rank) {
	h.Retired = append(h.Retired, h.Ranks[r].Arena)
	delete(h.Ranks, r)
}

// Keep makes an arena a holder without a rank.
func (h *Here) Keep(a *holding.Arena) { h.Retired = append(h.Retired, a) }

// Of finds the rank that a session speaks for.
func (h *Here) Of(p session.Peer) (r replica.Rank, ok bool) {
	for r, lr := range h.Ranks {
		if lr.Peer == p {
			return r, true
		}
	}
	return 0, false
}

// Running are the claims of ranks that live, by the kernel's word and not the rank's own.
func (h *Here) Running() (claims []replica.Running) {
	for r, lr := range h.Ranks {
		if lr.Alive() && !lr.Unproven {
			claims = append(claims, replica.Running{Job: h.id, Rank: r, Incarnation: lr.Incarnation})
		}
	}
	return claims
}

// Listed is what a daemon that starts again must know of the job's arenas, but for those on their way to another process.
func (h *Here) Listed(passing func(key string) bool) (list []holding.Entry) {
	for r, lr := range h.Ranks {
		if lr.Unproven || passing(lr.Arena.Key()) {
			continue // listed it would count as proven
		}
		list = append(list, holding.Entry{Key: lr.Arena.Key(), Job: h.id, Rank: r, PID: lr.PID, Start: lr.Start})
	}
	for _, a := range h.Retired {
		if !passing(a.Key()) {
			list = append(list, holding.Entry{Key: a.Key(), Job: h.id, Rank: a.Spec().Rank})
		}
	}
	for _, m := range append(h.Mirrors.All(), h.Mirrors.Coming()...) {
		list = append(list, holding.Entry{Key: m.Arena.Key(), Job: h.id, Rank: m.Rank, Mirror: true})
	}
	return list
}

// Rank is a rank as launchers see it.
func (h *Here) Rank(r replica.Rank) (is launchers.Rank, known bool) {
	lr := h.Ranks[r]
	if lr == nil {
		return is, false
	}
	is = launchers.Rank{PID: uint64(lr.PID), Alive: lr.Alive(), Stopped: lr.Stopped(), Trains: lr.Life == rank.Training, Left: lr.Left(),
		Halted: lr.Halted, Ending: lr.Ending > 0, Initial: lr.Initial, Loaded: lr.Loaded}
	if is.Trains {
		is.Word = lr.Arena.Step()
	}
	return is, true
}

// Size is that of the largest state here. False: no rank has an arena here.
func (h *Here) Size() (most control.SizeStatus, ok bool) {
	for _, lr := range h.Ranks {
		head := lr.Arena.Header()
		s := control.SizeStatus{Job: h.id, Slots: int(head.Slots), ChunkBytes: head.ChunkBytes}
		for _, r := range lr.Arena.Geometry().Regions {
			switch {
			case r.Class == replica.Frozen:
				s.Frozen += r.Bytes
			case r.Kind == replica.Private:
				s.Own += r.Bytes
			case r.Class == replica.Volatile:
				s.Common += r.Bytes
			default:
				s.Trained += r.Bytes
			}
		}
		if !ok || s.Trained+s.Common+s.Frozen+s.Own > most.Trained+most.Common+most.Frozen+most.Own {
			most, ok = s, true
		}
	}
	return most, ok
}

// Live is the newest step that a live rank here has begun. False: none lives.
func (h *Here) Live() (newest replica.Step, ok bool) {
	for _, lr := range h.Ranks {
		if lr.Alive() {
			newest, ok = max(newest, lr.Arena.Step().Step()), true
		}
	}
	return newest, ok
}

// CopyRate is what a capture under way is taken to copy at least in a second, in bytes: settle_timeout alone is a size's, not a fault's.
const CopyRate = 256 << 20

// copyTime is how long the largest capture under way here may take beyond settle_timeout.
func (h *Here) copyTime() (longest time.Duration) {
	for _, lr := range h.Ranks {
		if lr.Alive() && lr.Arena.Unsealed() {
			longest = max(longest, time.Duration(float64(lr.Arena.Geometry().ReplicatedBytes)/CopyRate*float64(time.Second)))
		}
	}
	return longest
}

// CheckArenas holds what the job has of arenas against what other owners of the node have: owns panics where one has two.
func (h *Here) CheckArenas(owns func(a *holding.Arena, who string)) {
	for r, lr := range h.Ranks {
		owns(lr.Arena, "rank "+replica.OfRank(r).String()+" of "+h.id.String())
	}
	for _, a := range h.Retired {
		owns(a, "the retired of "+h.id.String())
	}
	for _, m := range append(h.Mirrors.All(), h.Mirrors.Coming()...) {
		owns(m.Arena, "the mirror of "+m.Part.String()+" of "+h.id.String())
		invariant.Holds(m.Arena.Spec().Mirror, "arena %s of a rank mirrors %v", m.Arena.Key(), m.Part)
		invariant.Holds(m.Arena.Spec().Job == h.id, "arena %s of job %v mirrors %v of job %v", m.Arena.Key(), m.Arena.Spec().Job, m.Part, h.id)
	}
}
