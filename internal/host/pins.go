package host

import (
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/push"
	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// sealed follows a place that became SEALED: a private part goes to its mirrors at once, what the leader wants to commit
// next is pinned.
func (h *Host) sealed(lj *localJob, lr *localRank, p shm.Place) {
	info, err := lr.arena.Info(p)
	if err != nil {
		return // freed or torn meanwhile: the word is the truth, the message only a wake-up
	}
	h.notify(h.push, push.Sealed{Job: lj.job.ID, Rank: lr.rank, Place: p, Info: info})
	if p.Kind == shm.Slot {
		lr.sealedAt[info.Generation] = time.Now()
	}
	h.checkInitial(lj, lr)
	switch {
	case lj.job.Phase != replica.Open:
		h.reconcile(lj)
	case info.Generation == lj.candidate.Generation:
		h.answerCandidate(lj)
		h.retain(lj)
	default: // whatever else is here has not changed: with many ranks, looking at all of it for each seal would cost their number squared
		h.answerPassed(lj, lr)
		h.retainArena(lj, lr.arena, lr)
	}
}

// checkInitial notes that a rank has sealed both parts of (epoch, init).
func (h *Host) checkInitial(lj *localJob, lr *localRank) {
	if lj.job.Phase != replica.Opening || lr.initial == lj.job.Epoch {
		return
	}
	if lr.arena.Captured(lj.job.Epoch) {
		lr.initial = lj.job.Epoch
		h.report(lj)
	}
}

// newCandidate obeys a newer candidate: every pin of an older one is let go.
func (h *Host) newCandidate(lj *localJob, c replica.Candidate) {
	lj.obey(c, lj.job.Position, time.Now(), lj.view().Furthest(c.Generation.Epoch))
	for _, lr := range lj.ranks {
		lr.arena.SetCandidate(c.Position)
	}
	for _, l := range lj.parts() {
		if lj.outdated(l) {
			l.Arena.Pin(l.Place, 0, 0)
		}
	}
	h.notify(h.push, push.Named{Job: lj.job.ID})
	h.answerCandidate(lj)
	h.retain(lj)
}

// answerCandidate pins what is held sealed of the candidate and says so, or says that a rank has passed it. A daemon that goes does not: what is
// committed once it has looked would be in no spool.
func (h *Host) answerCandidate(lj *localJob) {
	c := lj.candidate
	if h.link == nil || h.leaving.goes || !lj.awaited(lj.job) {
		return
	}
	var fresh []replica.Held
	for _, l := range lj.parts() {
		if !lj.owes(l) {
			continue
		}
		l.Arena.Pin(l.Place, c.Term, c.N)
		if now, err := l.Arena.Info(l.Place); err != nil || now.Generation != c.Generation {
			continue // freed and filled anew meanwhile
		}
		lj.answered[pinKey(l)] = true
		fresh = append(fresh, l.Held)
	}
	if len(fresh) > 0 {
		h.send(lj.pins(h.self, fresh, lj.view().Furthest(c.Generation.Epoch)))
	}
	for _, lr := range lj.ranks {
		if planted.Early {
			if _, has := lr.sealedAt[c.Generation]; has {
				lr.arena.SetCommitted(c.Position)
			}
		}
		h.answerPassed(lj, lr)
	}
}

// answerPassed says that a rank has passed the candidate, or stands below it.
func (h *Host) answerPassed(lj *localJob, lr *localRank) {
	if h.link == nil || !lj.awaited(lj.job) || !lr.alive() && !lr.left() {
		return
	}
	if p, due := lj.passes(lj.job, h.self, lr.rank, lr.arena, lr.stands()); due {
		h.send(p)
	}
}

// stands tells whether the rank makes no further step for now: it has left, or has said that it stands still.
func (lr *localRank) stands() bool { return lr.left() || lr.pulse.Stands() }

// progressed follows a commit: the once-a-step path.
func (h *Host) progressed(lj *localJob, p control.Progress) {
	if p.Index < lj.job.LastIndex {
		return
	}
	lj.job = p.After(lj.job)
	lj.clocks.Follow(time.Since(h.began), lj.job)
	h.tellCommitted(lj)
	h.launchers.LetGo()
	h.notify(h.push, act.Committed{Job: lj.job.ID})
	h.retain(lj)
	h.release(lj)
	h.notify(h.mirrors, act.Committed{Job: lj.job.ID})
}

// tellCommitted tells the ranks here how far their job is committed.
func (h *Host) tellCommitted(lj *localJob) {
	for _, lr := range lj.ranks {
		lr.arena.SetCommitted(lj.job.Position)
		if at, ok := lr.sealedAt[lj.job.Committed]; ok {
			h.log.CommitLag(lj.job, time.Since(at))
			h.log.CommitsSeen(lj.job, &lj.spell, time.Since(at), time.Now())
		}
		for g := range lr.sealedAt {
			if g.Step <= lj.job.Committed.Step {
				delete(lr.sealedAt, g)
			}
		}
	}
	h.launchers.Of(lj).Lacks(lj.lacks.Committed(lj.job.Committed))
}

// retain frees every place that protocol section 4 allows to be freed now.
func (h *Host) retain(lj *localJob) {
	for _, lr := range lj.ranks {
		h.retainArena(lj, lr.arena, lr)
	}
	for _, m := range lj.mirrors.All() {
		h.retainArena(lj, m.Arena, nil)
	}
}

// retainArena does so in the arena of a rank, or (nil) of a mirror.
func (h *Host) retainArena(lj *localJob, a *holding.Arena, lr *localRank) {
	in, places := h.placeStates(lj, a, lr == nil, lr == nil || !lr.alive() || lr.stopped())
	if lr != nil {
		in.Good, in.Stands = a.Good(), lr.stands()
		in.Unasked = lj.unasked(time.Now()) >= h.cfg.Timing.HolderGrace
	}
	for _, i := range lock.Retain(in) {
		a.Free(places[i])
	}
	if s := lock.Shelter(in); s != 0 && slices.ContainsFunc(a.Places(), func(p shm.Place) bool { return p.Kind == shm.Slot && a.Word(p).State() == replica.SlotFree }) {
		a.SetCandidate(replica.Position{Epoch: lj.job.Epoch, Step: s})
	}
}

// placeStates describes an arena's slots and ring to lock's rules.
func (h *Host) placeStates(lj *localJob, a *holding.Arena, isMirror, dead bool) (lock.RetainInput, []shm.Place) {
	in := lock.RetainInput{Job: lj.job, Candidate: lj.candidate.Generation, Slots: int(a.Header().Slots)}
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
			s.Pinned = info.PinN != 0 && info.PinN == lj.candidate.N && info.PinTerm == lj.candidate.Term && lock.PinHolds(lj.job, lj.candidate.Generation)
		}
		in.Places = append(in.Places, s)
		places = append(places, p)
	}
	return in, places
}
