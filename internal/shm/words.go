package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/replicad/replicad/replica"
)

func (a *Arena) word(off int) *uint64 { return (*uint64)(unsafe.Add(a.page, off)) }

func (a *Arena) load(off int) uint64     { return atomic.LoadUint64(a.word(off)) }
func (a *Arena) store(off int, v uint64) { atomic.StoreUint64(a.word(off), v) }

// Step is the training thread's word: epoch, step and phase. Zero until the process that owns the arena has state of its own.
func (a *Arena) Step() replica.Word { return a.ofOwner(wordStep) }

// Good is how far the rank vouches for its live state. Zero until the process that owns the arena has state of its own.
func (a *Arena) Good() replica.Word { return a.ofOwner(wordGood) }

// ofOwner reads a word that speaks of live state. An arena outlives its processes, and the next one has none of the state that its
// predecessor's words speak of: so a word counts only where the holder's word names the owner. The rank clears that word first and
// writes it last, and it is read first here: whoever is named has written the word that is read then.
func (a *Arena) ofOwner(off int) replica.Word {
	if holder := a.load(wordHolder); holder == 0 || holder != a.load(wordIncarnation) {
		return 0
	}
	return replica.Word(a.load(off))
}

// Committed is the position last written by SetCommitted.
func (a *Arena) Committed() replica.Word { return replica.Word(a.load(wordCommitted)) }

// Candidate is the position of the next candidate; 0: none.
func (a *Arena) Candidate() replica.Word { return replica.Word(a.load(wordCandidate)) }

// Skipped is how many captures the rank skipped for want of a slot.
func (a *Arena) Skipped() uint64 { return a.load(wordSkipped) }

// Fence is the highest closed epoch that this daemon raised, or found at adoption.
func (a *Arena) Fence() replica.Epoch {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fence
}

// RaiseFence closes epochs up to e for this rank: when it returns, no step_enter of them succeeds any more. It never falls.
func (a *Arena) RaiseFence(e replica.Epoch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fence = max(a.fence, min(e, replica.MaxEpoch))
	a.store(wordFence, uint64(a.fence))
}

// SetCommitted tells the rank the committed position.
func (a *Arena) SetCommitted(p replica.Position) {
	a.store(wordCommitted, uint64(replica.PackWord(p.Epoch, p.Step, 0)))
}

// SetCandidate tells the rank the position of the next candidate.
func (a *Arena) SetCandidate(p replica.Position) {
	a.store(wordCandidate, uint64(replica.PackWord(p.Epoch, p.Step, 0)))
}

// SetCadence tells the rank that a generation is due each c steps.
func (a *Arena) SetCadence(c replica.Step) { a.store(wordCadence, uint64(c)) }

// SetOwner records which process owns the arena: the rank incarnation, its pid and start time (field 22 of /proc/pid/stat).
func (a *Arena) SetOwner(inc replica.Incarnation, pid, start uint64) {
	a.store(wordPID, 0) // so that a torn reading names no process rather than a wrong one
	a.store(wordIncarnation, uint64(inc))
	a.store(wordStart, start)
	a.store(wordPID, pid)
}

// Owner is what SetOwner recorded. After an adoption it is the rank's word: compare it with /proc before use.
func (a *Arena) Owner() (inc replica.Incarnation, pid, start uint64) {
	return replica.Incarnation(a.load(wordIncarnation)), a.load(wordPID), a.load(wordStart)
}
