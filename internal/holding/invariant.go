package holding

import (
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Check holds an arena's account against its words. In builds that do not check it does nothing.
func (a *Arena) Check() {
	if !invariant.On || a.closed && a.users == 0 {
		return
	}
	readers := 0
	for p, n := range a.held {
		readers += n
		invariant.Holds(n > 0, "%v of arena %s is held by %d", p, a.key, n)
	}
	invariant.Holds(a.users >= readers, "arena %s has %d users, and %d readers", a.key, a.users, readers)
	for p, s := range a.staged {
		invariant.Holds(s.Place() == p, "%v of arena %s is staged as %v", p, a.key, s.Place())
		is := a.Word(p).State()
		invariant.Holds(s.Ended() || is == replica.SlotCopying || is == replica.SlotCopied,
			"%v of arena %s is being written by the daemon, and %v", p, a.key, is)
	}
}

// Free gives a sealed or torn place back, which the daemon is not writing to. Who reads it finds that out by the place's count: a bad copy
// is dropped under its readers.
func (a *Arena) Free(p shm.Place) bool {
	invariant.Holds(a.staged[p] == nil || a.staged[p].Ended(), "%v of arena %s is freed while the daemon writes to it", p, a.key)
	return a.Arena.Free(p)
}
