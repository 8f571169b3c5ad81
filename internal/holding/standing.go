package holding

import (
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Standing is how one part stands in an arena. A push, a fetch for a plan, a fetch for another node and a refill all ask here before they
// bring a part. A part that arrived twice would take the place of the next candidate, and nothing would be committed any more.
type Standing uint8

const (
	Absent Standing = iota // nothing brings it
	Coming                 // the daemon writes it to a place
	Sealed                 // it lies there
)

func (s Standing) String() string { return [...]string{"absent", "coming", "sealed"}[s] }

var (
	// ErrBrought refuses a place for a part that lies in the arena already, or is on its way into it.
	ErrBrought = errors.New("the part lies here, or is on its way here")
	// ErrNoPlace says that each place holds something that must stay.
	ErrNoPlace = errors.New("no place can be freed")
)

// Standing looks a part up by the kind of its place, its generation and its root; a frozen part by its root alone.
func (a *Arena) Standing(k shm.PlaceKind, g replica.Generation, root replica.Digest) Standing {
	is := Absent
	for _, p := range a.Places() {
		if p.Kind != k {
			continue
		}
		if s := a.staged[p]; s != nil {
			if m := s.Manifest(); !s.Ended() && m.Root == root && (k == shm.Frozen || m.Generation == g) {
				is = max(is, Coming)
			}
		} else if info, err := a.Info(p); err == nil && info.Root == root && (k == shm.Frozen || info.Generation == g) {
			return Sealed
		}
	}
	return is
}

// TakeFor takes a place for a part that is in none yet, of several free ones that which a broken transfer of the part has left most in. Where no place of its kind is free, the places that giveWay names are freed first;
// the frozen area always gives way. ErrBrought and ErrNoPlace say why there is none.
func (a *Arena) TakeFor(m replica.Manifest, giveWay func() []shm.Place) (shm.Place, *shm.Staging, error) {
	if a.closed {
		return shm.Place{}, nil, fmt.Errorf("arena %s was given up", a.key)
	}
	kind := KindFor(m.Part)
	if is := a.Standing(kind, m.Generation, m.Root); is != Absent && !planted.Twice {
		return shm.Place{}, nil, fmt.Errorf("%v of generation %v in arena %s: %w (%v)", m.Part, m.Generation, a.key, ErrBrought, is)
	}
	for try := 0; ; try++ {
		var free []shm.Place
		for _, p := range a.Places() {
			if p.Kind != kind {
				continue
			}
			if kind == shm.Frozen && a.staged[p] == nil && a.Word(p).State() != replica.SlotFree {
				a.Free(p)
			}
			if a.Word(p).State() == replica.SlotFree {
				free = append(free, p)
			}
		}
		if len(free) > 0 {
			p := a.fullest(free, &m)
			s, err := a.Take(p, m)
			return p, s, err
		}
		freed := false
		for _, p := range giveWay() {
			freed = a.Free(p) || freed
		}
		if !freed || try > 2 {
			return shm.Place{}, nil, fmt.Errorf("arena %s, to stage %v of generation %v: %w", a.key, m.Part, m.Generation, ErrNoPlace)
		}
	}
}

// fullest is the free place in which most of a part lies already: a transfer that broke off has left it there. Else the first one.
func (a *Arena) fullest(free []shm.Place, m *replica.Manifest) (best shm.Place) {
	best = free[0]
	if len(free) == 1 {
		return best
	}
	most := 0
	for _, p := range free {
		if n := a.Left(p, m); n > most {
			best, most = p, n
		}
	}
	return best
}

// Unwanted lists what is on its way into places of a kind without being wanted any more: it holds the place of what is.
func (a *Arena) Unwanted(k shm.PlaceKind, wanted func(replica.Generation) bool) (out []*shm.Staging) {
	for p, s := range a.staged {
		if p.Kind == k && !s.Ended() && !wanted(s.Manifest().Generation) {
			out = append(out, s)
		}
	}
	return out
}

// GiveUpLeft gives up whatever dead writers left half done: each place that is neither free nor sealed and that nothing of this daemon
// writes to. It is the one answer to what the dead left where no living process writes: in the arena of a rank that has died, and in a
// mirror's whose daemon has. The bytes of a COPIED place are whole: those in a rank's arena are returned, to be hashed and sealed in its
// name (Finish). A mirror's are brought again. For the arena of a living rank see Joined.
func (a *Arena) GiveUpLeft() (copied []shm.Place) {
	for _, p := range a.Places() {
		if a.staged[p] != nil {
			continue // a chunk may still be on its way in
		}
		switch a.Word(p).State() {
		case replica.SlotCopying, replica.SlotTorn:
			a.GiveUp(p)
		case replica.SlotCopied:
			if a.Spec().Mirror {
				a.GiveUp(p)
			} else {
				copied = append(copied, p)
			}
		case replica.SlotFree, replica.SlotSealed:
		}
	}
	return copied
}

// Left is what was half done in the arena of a living rank when this daemon got it: by the rank, or by the daemon before.
type Left map[shm.Place]replica.SlotWord

// HalfDone notes what is half done and not this daemon's.
func (a *Arena) HalfDone() Left {
	left := Left{}
	for _, p := range a.Places() {
		if w := a.Word(p); a.staged[p] == nil && (w.State() == replica.SlotCopying || w.State() == replica.SlotCopied) {
			left[p] = w
		}
	}
	return left
}

// Joined frees what is torn, once the living rank has joined its captures. What is half done in the same use of its place as when this
// daemon got the arena is then the dead daemon's, and is given up. Any other may be a capture that the rank has begun since, for a plan.
func (a *Arena) Joined(left Left) {
	for _, p := range a.Places() {
		if w, was := left[p]; was && a.staged[p] == nil && a.Word(p) == w {
			a.Tear(p)
		}
		a.freeTorn(p)
	}
}
