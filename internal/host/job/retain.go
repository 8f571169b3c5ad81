package job

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Retain frees every place that protocol section 4 allows to be freed now.
func (j *Job) Retain() {
	for _, lr := range j.Ranks {
		retainArena(j, lr.Arena, lr)
	}
	for _, m := range j.Mirrors.All() {
		retainArena(j, m.Arena, nil)
	}
}

// RetainRank does so in the arena of one rank.
func (j *Job) RetainRank(r replica.Rank) {
	if lr := j.Ranks[r]; lr != nil {
		retainArena(j, lr.Arena, lr)
	}
}

// Released follows the end of the last read of an arena's place. What was kept for it alone is freed now: a rank whose slots are all taken may wait
// for that, and nothing else happens.
func (j *Job) Released(a *holding.Arena) {
	for _, lr := range j.Ranks {
		if lr.Arena == a {
			retainArena(j, a, lr)
		}
	}
	for _, m := range j.Mirrors.All() {
		if m.Arena == a {
			retainArena(j, a, nil)
		}
	}
}

// retainArena does so in the arena of a rank, or (nil) of a mirror.
func retainArena(j *Job, a *holding.Arena, lr *rank.Rank) {
	in, places := placeStates(j, a, lr == nil, lr == nil || !lr.Alive() || lr.Stopped())
	if lr != nil {
		in.Good, in.Stands = a.Good(), lr.Stands()
		in.Unasked = j.unasked(j.at.Node.Now()) >= j.at.Config.Timing.HolderGrace
	}
	for _, i := range lock.Retain(in) {
		a.Free(places[i])
	}
	free := func(p shm.Place) bool { return p.Kind == shm.Slot && a.Word(p).State() == replica.SlotFree }
	if s := lock.Shelter(in); s != 0 && slices.ContainsFunc(a.Places(), free) {
		a.SetCandidate(replica.Position{Epoch: j.Job.Epoch, Step: s})
	}
}

// placeStates describes an arena's slots and ring to lock's rules.
func placeStates(j *Job, a *holding.Arena, isMirror, dead bool) (lock.RetainInput, []shm.Place) {
	in := lock.RetainInput{Job: j.Job, Candidate: j.Candidate.Generation, Slots: int(a.Header().Slots)}
	all := a.Places()
	places := make([]shm.Place, 0, len(all))
	in.Places = make([]lock.PlaceState, 0, len(all))
	for _, p := range all {
		if p.Kind == shm.Frozen {
			continue
		}
		s := lock.PlaceState{Ring: p.Kind == shm.Ring, Mirror: isMirror, Index: p.Index, State: a.Word(p).State(), Held: a.Readers(p) > 0, Dead: dead}
		if s.State == replica.SlotSealed {
			info, err := a.Info(p)
			if err != nil {
				continue
			}
			s.Generation, s.Root = info.Generation, info.Root
			s.Told = info.PinN != 0
			s.Pinned = info.PinN != 0 && info.PinN == j.Candidate.N && info.PinTerm == j.Candidate.Term && lock.PinHolds(j.Job, j.Candidate.Generation)
		}
		in.Places = append(in.Places, s)
		places = append(places, p)
	}
	return in, places
}

// TakePlace takes a place for a part that is not here and not on its way; where none is free, the oldest one gives way that need not stay
// (lock/budget.go). Where what is on its way holds a place without being needed any more, that is broken off, and whoever brings the part is
// to come again.
func (j *Job) TakePlace(arena *holding.Arena, manifest replica.Manifest) (shm.Place, *shm.Staging, error) {
	kind := holding.KindFor(manifest.Part)
	if in, _ := placeStates(j, arena, arena.Spec().Mirror, true); kind == shm.Slot && manifest.Generation == j.Candidate.Generation && lock.CommittedFirst(in) {
		return shm.Place{}, nil, fmt.Errorf("%v of the candidate: %w: what is committed comes first, and has not come", manifest.Part, transfer.ErrNotYet)
	}
	p, s, err := arena.TakeFor(manifest, func() (giveWay []shm.Place) {
		in, places := placeStates(j, arena, arena.Spec().Mirror, true)
		for _, i := range lock.RetainForStaging(in, kind == shm.Ring, 1) {
			giveWay = append(giveWay, places[i])
		}
		return giveWay
	})
	needed := func(g replica.Generation) bool { return lock.Needed(j.Job, j.Candidate.Generation, g) }
	switch {
	case errors.Is(err, holding.ErrBrought):
		err = fmt.Errorf("%w: %w", transfer.ErrNotYet, err)
	case errors.Is(err, holding.ErrNoPlace) && kind == shm.Slot && needed(manifest.Generation):
		if idle := arena.Unwanted(kind, needed); len(idle) > 0 {
			breakOff(j, arena, idle)
			err = fmt.Errorf("%w: %w", transfer.ErrNotYet, err)
		}
	case errors.Is(err, holding.ErrNoPlace) && kind == shm.Slot && ahead(j, manifest.Generation):
		err = fmt.Errorf("%w: node %s has not heard that %v is the candidate: %w", transfer.ErrNotYet, j.at.Node.Self().Name, manifest.Generation, err)
	}
	return p, s, err
}

// ahead tells whether a generation may be a candidate that this node has not heard of: its link to the leader may be slower than the pusher's.
func ahead(j *Job, g replica.Generation) bool {
	return j.Job.Phase == replica.Open && g.Epoch == j.Job.Epoch && g.Compare(j.Job.Committed) > 0 && g.Compare(j.Candidate.Generation) > 0
}

// breakOff ends transfers into an arena whose parts nothing needs any more. Chunks under way are waited for, beside the node.
func breakOff(j *Job, arena *holding.Arena, idle []*shm.Staging) {
	for _, s := range idle {
		j.at.Node.Beside(j.Job.ID, func(context.Context) Ending {
			s.Abort()
			return brokenOff{arena, s}
		})
	}
}

// brokenOff is the end of a transfer that was broken off: its place is free.
type brokenOff struct {
	arena   *holding.Arena
	staging *shm.Staging
}

func (b brokenOff) End(*Job) { b.arena.Unstage(b.staging.Place(), b.staging) }
