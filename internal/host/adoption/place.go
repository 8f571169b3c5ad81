package adoption

import (
	"cmp"
	"slices"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// fate is what becomes of an arena.
type fate uint8

const (
	waits    fate = iota // no leader has sent the jobs yet
	unwanted             // no job here needs it
	mirrors              // it takes the place of a part that this node mirrors
	ranks                // it takes the place of its rank, or is a holder until the next commit
)

// judge says what becomes of an arena. job is nil where the node does not know it. The arena of a live rank takes its place in a job that has ended,
// too: the rank is told of the end there.
func judge(job *replica.Job, informed, mirror, alive bool) fate {
	switch {
	case job == nil && !informed:
		return waits
	case job == nil || job.Phase == replica.Ended && (mirror || !alive):
		return unwanted
	case mirror:
		return mirrors
	}
	return ranks
}

// seat is the place of a rank.
type seat struct {
	job  replica.JobID
	rank replica.Rank
}

// seating is who takes which seat, and who is retired for that.
type seating struct {
	order   []seat
	newest  map[seat]*orphan
	retired []act.Effect
}

// place gives each arena to its job, once that is known. No death is looked at before all arenas are in their places: a death has the job fenced
// and reported, and then other arenas would miss the fence, and live ranks be reported as gone.
func (r *Room) place() []act.Effect {
	var rest []*orphan
	var placed, unneeded, settled []act.Effect
	s := seating{newest: map[seat]*orphan{}}
	for _, o := range r.orphans {
		v, _ := r.owner.Job(o.Spec().Job)
		mirror := o.Spec().Mirror
		switch judge(v.Job, r.owner.Informed(), mirror, !mirror && r.owner.Alive(o.Process.PID, o.Process.Start)) {
		case waits:
			rest = append(rest, o)
		case unwanted:
			unneeded = append(unneeded, GiveUp{o.Arena, o.peer})
		case mirrors:
			placed = append(placed, Mirror{v.Job.ID, room.Mirrored(v.Job, o.Spec()), o.Arena})
		case ranks:
			s.add(v, o)
		}
	}
	for _, at := range s.order {
		o := s.newest[at]
		v, _ := r.owner.Job(at.job)
		if old, taken := v.Rank(at.rank); taken {
			s.retire(at.job, old.Arena)
		}
		placed = append(placed, placeOf(v.Job, o))
		settled = append(settled, Settle{at.job, at.rank, o.Arena, o.sent})
	}
	r.orphans = rest
	effects := slices.Concat(s.retired, placed, unneeded)
	if len(s.retired)+len(placed) > 0 {
		effects = append(effects, Placed{})
	}
	return append(effects, settled...)
}

// add has an arena compete for the place of its rank. The newest incarnation has it: that in place now, or the newest of those that came back.
func (s *seating) add(v room.JobView, o *orphan) {
	at := seat{v.Job.ID, o.Spec().Rank}
	if old, taken := v.Rank(at.rank); taken && !newer(o.Arena, old.Arena) {
		s.retire(at.job, o.Arena)
		return
	}
	other := s.newest[at]
	if other == nil {
		s.order, s.newest[at] = append(s.order, at), o
		return
	}
	if !newer(o.Arena, other.Arena) {
		s.retire(at.job, o.Arena)
		return
	}
	s.retire(at.job, other.Arena)
	s.newest[at] = o
}

// newer tells whether an arena is of a newer incarnation of its rank than another one, or of a later growth of the same.
func newer(a, than *holding.Arena) bool {
	is, _, _ := a.Owner()
	was, _, _ := than.Owner()
	return cmp.Or(cmp.Compare(is, was), cmp.Compare(a.Grown(), than.Grown())) > 0
}

func (s *seating) retire(job replica.JobID, a *holding.Arena) {
	s.retired = append(s.retired, act.Retire{Job: job, Arena: a})
}

// placeOf is what the arena and the job's record say of a rank.
func placeOf(job *replica.Job, o *orphan) Place {
	inc, _, _ := o.Owner()
	return Place{Job: job.ID, Rank: o.Spec().Rank, Incarnation: inc, Arena: o.Arena, Peer: o.peer, Finished: recovery.HasFinished(job), Loaded: loaded(job, o.Good())}
}

// loaded is the epoch whose state a rank has loaded, by its good word; 0: the word does not say. In an epoch that is planned good may be of the
// initial state, or of a load that the rank is about to reject.
func loaded(job *replica.Job, good replica.Word) replica.Epoch {
	if good.Epoch() < job.Epoch || job.Phase == replica.Open || job.Phase == replica.Closed {
		return good.Epoch()
	}
	return 0
}
