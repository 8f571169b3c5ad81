package holding

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Arena is an arena that this node holds. It counts who reads it besides its owner, so that it is unmapped only after the last. Its methods are
// one goroutine's, its owner's; those of the shm.Arena in it are anybody's.
type Arena struct {
	*shm.Arena
	Process Process // who got it last: the owner's to write

	key    string
	held   map[shm.Place]int // readers: a held place is never freed
	seen   map[shm.Place]seenPlace
	staged map[shm.Place]*shm.Staging // the daemon itself writes there: torn and freed by that alone, even when the rank dies
	users  int
	closed bool
	unmap  func(*shm.Arena)
}

// Process is the process that has a rank's arena, as the kernel and the list on disk say. The arena's page names one too (Owner), but that is the
// rank's own word: one that lies must not have another process killed in its place.
type Process struct {
	PID    int
	Start  uint64 // as the kernel has it: a pid is given out again
	Proven bool   // by the list on disk, or by the kernel when it attached again
}

// seenPlace is what was read of a sealed place. A sealed place doesn't change until its word does, so it is read and checked
// once, not at every look (there are dozens of looks a step).
type seenPlace struct {
	word replica.SlotWord
	info shm.Info
}

// New holds an arena under its key with the keeper and on the list. unmap gives its memory back, once; it must not wait.
func New(a *shm.Arena, key string, unmap func(*shm.Arena)) *Arena {
	return &Arena{Arena: a, key: key, unmap: unmap, held: map[shm.Place]int{}, seen: map[shm.Place]seenPlace{}, staged: map[shm.Place]*shm.Staging{}}
}

// Key is what the keeper and the list on disk know the arena by.
func (a *Arena) Key() string { return a.key }

// Fits tells whether a process that registers a geometry may have the arena: its replicated and its private part are laid out so.
func (a *Arena) Fits(g replica.Geometry) bool {
	has := a.Geometry()
	for _, k := range []replica.PartKind{replica.ReplicatedPart, replica.PrivatePart} {
		if shm.GeometryDigest(has, k) != shm.GeometryDigest(g, k) {
			return false
		}
	}
	return true
}

// Info describes a sealed place: as Sealed does, from memory where its word is the one last seen. The owner alone
// writes pins, through Pin.
func (a *Arena) Info(p shm.Place) (shm.Info, error) {
	w := a.Word(p)
	if s, ok := a.seen[p]; ok && s.word == w && w.State() == replica.SlotSealed {
		return s.info, nil
	}
	info, err := a.Sealed(p)
	if err == nil {
		a.seen[p] = seenPlace{w, info}
	} else {
		delete(a.seen, p)
	}
	return info, err
}

// Pin writes a place's pin; zeros take it away.
func (a *Arena) Pin(p shm.Place, term, n uint64) {
	a.Arena.Pin(p, term, n)
	if s, ok := a.seen[p]; ok {
		s.info.PinTerm, s.info.PinN = term, n
		a.seen[p] = s
	}
}

// Hold counts a reader of a place, Release its end.
func (a *Arena) Hold(p shm.Place) {
	a.held[p]++
	a.Enter()
}

// HoldSealed is Hold where the place is sealed, and tells whether it is.
func (a *Arena) HoldSealed(p shm.Place) bool {
	if a.Word(p).State() != replica.SlotSealed {
		return false
	}
	a.Hold(p)
	return true
}

// Release ends a Hold.
func (a *Arena) Release(p shm.Place) {
	if a.held[p]--; a.held[p] == 0 {
		delete(a.held, p)
	}
	invariant.Holds(a.held[p] >= 0, "%v of arena %s is released once more than it was held", p, a.key)
	a.Leave()
}

// Enter counts a reader that keeps the arena mapped, but none of its places from being freed: it must expect that. Leave is its end.
func (a *Arena) Enter() {
	invariant.Holds(!a.closed || a.users > 0, "arena %s is entered, whose memory was given back", a.key)
	a.users++
}

// Leave ends an Enter.
func (a *Arena) Leave() {
	a.users--
	invariant.Holds(a.users >= 0, "arena %s is left once more than it was entered", a.key)
	if a.closed && a.users == 0 {
		a.unmap(a.Arena)
	}
}

// Readers counts who reads a place.
func (a *Arena) Readers(p shm.Place) int { return a.held[p] }

// Drop unmaps now, or when the last reader lets go.
func (a *Arena) Drop() {
	if a.closed {
		return
	}
	a.closed = true
	if a.users == 0 {
		a.unmap(a.Arena)
	}
}

// Dropped tells whether the arena was given up.
func (a *Arena) Dropped() bool { return a.closed }

// Take takes a FREE place for a part that the daemon itself writes, until Unstage.
func (a *Arena) Take(p shm.Place, m replica.Manifest) (*shm.Staging, error) {
	s, err := a.Arena.Take(p, m)
	if err == nil {
		a.staged[p] = s
	}
	return s, err
}

// Staged reports whether the daemon itself writes to a place.
func (a *Arena) Staged(p shm.Place) bool { return a.staged[p] != nil }

// Unstage ends a staging that was sealed or aborted; what it left torn is freed. One that was broken off for a wanted part may find another
// staging in its place, which it lets be.
func (a *Arena) Unstage(p shm.Place, s *shm.Staging) {
	if a.staged[p] == s {
		delete(a.staged, p)
		a.freeTorn(p)
	}
}

// freeTorn gives a torn place back, after a staging that could not. One that the staging gave back itself may have been
// taken and sealed again by now, and counted on.
func (a *Arena) freeTorn(p shm.Place) {
	if a.Word(p).State() == replica.SlotTorn {
		a.Free(p)
	}
}

// TearAll gives up whatever is not sealed.
func (a *Arena) TearAll() {
	for _, p := range a.Places() {
		a.Tear(p)
	}
}

// GiveUp tears what is not sealed in a place, and frees it. Nobody may be copying into it any more.
func (a *Arena) GiveUp(p shm.Place) {
	a.Tear(p)
	a.Free(p)
}

// Unsealed tells whether something here is being copied or hashed.
func (a *Arena) Unsealed() bool {
	return slices.ContainsFunc(a.Places(), func(p shm.Place) bool {
		s := a.Word(p).State()
		return s == replica.SlotCopying || s == replica.SlotCopied
	})
}

// Identify sets who has an arena that was taken back from the keeper: the process that its entry on the list names, where it is listed, else the
// one that its page names. odd says what of that is odd; a mirror is nobody's.
func (a *Arena) Identify(e Entry, listed bool) (odd string) {
	a.Process = Process{}
	if a.Spec().Mirror {
		return "" // the daemon's own
	}
	_, pid, start := a.Owner()
	a.Process = Process{PID: int(pid), Start: start}
	if !listed {
		return fmt.Sprintf("not in the list of arenas: process %d, which the arena itself names, is watched, and never killed before it has attached again: end it yourself if it must go", pid)
	}
	if e.PID != 0 && (e.PID != a.Process.PID || e.Start != start) { // 0: that of a retired one, which has ended
		odd = fmt.Sprintf("the arena names process %d (started at %d), the list of arenas process %d (started at %d): the list counts", pid, start, e.PID, e.Start)
	}
	a.Process = Process{e.PID, e.Start, true}
	return odd
}
