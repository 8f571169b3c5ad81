package shm

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/replicad/replicad/replica"
)

// Errors of places; returned errors wrap them with the place and the values.
var (
	ErrNotSealed = errors.New("not sealed")
	ErrChanged   = errors.New("changed while it was read")
	ErrCorrupt   = errors.New("bytes do not hash to their digest")
	ErrState     = errors.New("in another state")
	ErrNoPlace   = errors.New("no such place in this arena")
)

// PlaceKind tells what a place is for.
type PlaceKind uint8

// The kinds of places, numbered as in rp_sealed.
const (
	Slot   PlaceKind = 0 // replicated parts
	Ring   PlaceKind = 1 // private parts
	Frozen PlaceKind = 2 // the frozen part
)

// Place is a fixed place of an arena. The daemon alone hands them out.
type Place struct {
	Kind  PlaceKind
	Index int
}

func (p Place) String() string {
	switch p.Kind {
	case Slot:
		return fmt.Sprintf("slot %d", p.Index)
	case Ring:
		return fmt.Sprintf("ring place %d", p.Index)
	case Frozen:
		return "frozen area"
	}
	return fmt.Sprintf("place %d/%d", p.Kind, p.Index)
}

// PartKind is the kind of part that the place is for.
func (p Place) PartKind() replica.PartKind {
	switch p.Kind {
	case Slot:
		return replica.ReplicatedPart
	case Ring:
		return replica.PrivatePart
	case Frozen:
	}
	return replica.FrozenPart
}

// invalidWord is what a place that the arena does not have reads as: of no known state, so nothing matches it.
const invalidWord = replica.SlotWord(7)

// Places lists the arena's places: slots, ring, and the frozen area if it holds anything. They are the arena's: read alone.
func (a *Arena) Places() []Place { return a.places }

func placesOf(head Header) []Place {
	var ps []Place
	for i := range int(head.Slots) {
		ps = append(ps, Place{Slot, i})
	}
	for i := range int(head.Ring) {
		ps = append(ps, Place{Ring, i})
	}
	if head.FrozenBytes > 0 {
		ps = append(ps, Place{Frozen, 0})
	}
	return slices.Clip(ps)
}

// Has tells whether the arena has such a place; indexes from a rank's messages are looked up here.
func (a *Arena) Has(p Place) bool {
	switch p.Kind {
	case Slot:
		return p.Index >= 0 && p.Index < int(a.head.Slots)
	case Ring:
		return p.Index >= 0 && p.Index < int(a.head.Ring)
	case Frozen:
		return p.Index == 0 && a.head.FrozenBytes > 0
	}
	return false
}

// Word is the place's slot word; of no valid state if the arena has no such place.
func (a *Arena) Word(p Place) replica.SlotWord {
	if !a.Has(p) {
		return invalidWord
	}
	return replica.SlotWord(a.load(wordOf(p)))
}

func wordOf(p Place) int {
	switch p.Kind {
	case Slot:
		return wordSlot + wordStride*p.Index
	case Ring:
		return wordPlace + wordStride*p.Index
	case Frozen:
	}
	return wordFrozen
}

// swap changes a place's word if it still is from.
func (a *Arena) swap(p Place, from, to replica.SlotWord) bool {
	swapped := atomic.CompareAndSwapUint64(a.word(wordOf(p)), uint64(from), uint64(to))
	a.hasStored()
	return swapped
}

// span is where the place's bytes lie, and how many its part has.
func (a *Arena) span(p Place) (off, n uint64) {
	switch p.Kind {
	case Slot:
		return a.head.SlotOffset + uint64(p.Index)*a.head.SlotStride, a.head.ReplicatedBytes
	case Ring:
		return a.head.RingOffset + uint64(p.Index)*a.head.RingStride, a.head.PrivateBytes
	case Frozen:
	}
	return a.head.FrozenOffset, a.head.FrozenBytes
}

// metaOf is where the place's meta lies.
func (a *Arena) metaOf(p Place) uint64 {
	switch p.Kind {
	case Slot:
		return a.head.MetaOffset + uint64(1+p.Index)*a.head.SlotMetaStride
	case Ring:
		return a.head.MetaOffset + uint64(1+a.head.Slots)*a.head.SlotMetaStride + uint64(p.Index)*a.head.RingMetaStride
	case Frozen:
	}
	return a.head.MetaOffset
}

// fail names arena and place in an error.
func (a *Arena) fail(p Place, err error) error { return &placeError{a, p, err} }

// placeError makes its text when somebody reads it. Most are of places that are not sealed, at which the daemon looks dozens of times a step.
type placeError struct {
	a   *Arena
	p   Place
	err error
}

func (e *placeError) Error() string {
	return fmt.Sprintf("%v of job %v: %v: %v", e.a, e.a.spec.Job, e.p, e.err)
}

func (e *placeError) Unwrap() error { return e.err }

// notSealed is ErrNotSealed, with the state that a place is in.
type notSealed replica.SlotState

func (e notSealed) Error() string {
	return fmt.Sprintf("%v but %v", ErrNotSealed, replica.SlotState(e))
}

func (notSealed) Unwrap() error { return ErrNotSealed }

// Tear gives up an unsealed place for good: COPYING or COPIED becomes TORN, and so does a state that does not exist, which
// only a broken rank can have written. It tells whether the place is TORN by this call.
func (a *Arena) Tear(p Place) bool {
	for a.Has(p) {
		w := a.Word(p)
		switch w.State() {
		case replica.SlotFree, replica.SlotSealed, replica.SlotTorn:
			return false
		case replica.SlotCopying, replica.SlotCopied:
		}
		if a.swap(p, w, replica.PackSlot(w.Count(), replica.SlotTorn)) {
			return true
		}
	}
	return false
}

// Free hands a SEALED or TORN place out again with its use count raised, so that a leftover compare-and-swap of the earlier use
// changes nothing. The caller guarantees that copies into it are joined, or their process gone, and that nobody needs what it holds.
func (a *Arena) Free(p Place) bool {
	if !a.Has(p) {
		return false
	}
	w := a.Word(p)
	if s := w.State(); s != replica.SlotSealed && s != replica.SlotTorn {
		return false
	}
	a.Unpin(p) // before the word: once it is FREE the meta may be the rank's
	return a.swap(p, w, replica.PackSlot(w.Count()+1, replica.SlotFree))
}
