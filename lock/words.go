package lock

import (
	"fmt"

	"github.com/replicad/replicad/replica"
)

// The tables of protocol section 3: which value of a shared word may follow which. Every change is a compare-and-swap from
// the value that its maker last saw; these say which target is legal. libreplicad and shm make the changes, tests hold their
// traces against the tables.

// NextStep tells whether the training thread may change its step word from w to to:
//
//	{e, S-1, IDLE} -> {e, S, UPDATING} -> {e, S, UPDATED} -> {e, S, IDLE}
//	{e, S, UPDATING} -> {e, S-1, IDLE}   backed out: the fence was raised
//	anything -> {p, T, IDLE}, p > e      loaded for a newer epoch
func NextStep(w, to replica.Word) error {
	bad := func() error {
		return fmt.Errorf("step word: {%d, %d, %v} may not follow {%d, %d, %v}", to.Epoch(), to.Step(), to.Phase(), w.Epoch(), w.Step(), w.Phase())
	}
	if to.Epoch() != w.Epoch() {
		if to.Epoch() > w.Epoch() && to.Phase() == replica.Idle {
			return nil
		}
		return bad()
	}
	switch {
	case w.Phase() == replica.Idle && to.Phase() == replica.Updating && to.Step() == w.Step()+1,
		w.Phase() == replica.Updating && to.Phase() == replica.Updated && to.Step() == w.Step(),
		w.Phase() == replica.Updating && to.Phase() == replica.Idle && to.Step()+1 == w.Step(),
		w.Phase() == replica.Updated && to.Phase() == replica.Idle && to.Step() == w.Step():
		return nil
	}
	return bad()
}

// MayEnter tells whether step_enter(s) of a handle of epoch e succeeds: the live state stands whole at s-1 of that epoch,
// and the fence, read after UPDATING was stored, lies below it.
func MayEnter(step replica.Word, e replica.Epoch, s replica.Step, fence replica.Epoch) error {
	if fence >= e {
		return fmt.Errorf("step %d of epoch %d: fenced: epochs up to %d are closed", s, e, fence)
	}
	return NextStep(step, replica.PackWord(e, s, replica.Updating))
}

// NextGood tells whether the good word may change from w to to: it only rises, by epoch, then step, and has no phase.
func NextGood(w, to replica.Word) error {
	if to <= w || to.Phase() != 0 {
		return fmt.Errorf("good word: {%d, %d} may not follow {%d, %d}: it only rises", to.Epoch(), to.Step(), w.Epoch(), w.Step())
	}
	return nil
}

// MaySeal tells whether a replicated part of g may become COPIED, or be sealed by anyone: the device's updates up to it are
// known to be good, in the same epoch. The step word says nothing of that.
func MaySeal(good replica.Word, g replica.Generation) error {
	if good.Epoch() != g.Epoch || good.Step() < g.Step {
		return fmt.Errorf("seal of %v: good is only (%d,%d)", g, good.Epoch(), good.Step())
	}
	return nil
}

// NextFence tells whether the fence word may change from e to to: it never falls.
func NextFence(e, to replica.Epoch) error {
	if to < e {
		return fmt.Errorf("fence word: %d may not follow %d: it never falls", to, e)
	}
	return nil
}

// NextSlot tells whether a slot word may change from from to to. A rank takes FREE slots through COPYING and COPIED to
// SEALED, under one use count. The daemon may do the same (it stages restores, and finishes a COPIED part in a dead rank's
// name); it alone tears what is unsealed, and frees, raising the count, so that a leftover compare-and-swap of an earlier
// use changes nothing. TORN is final for its use: only FREE follows.
func NextSlot(from, to replica.SlotWord, daemon bool) error {
	f, t, same := from.State(), to.State(), from.Count() == to.Count()
	ok := false
	switch t {
	case replica.SlotCopying:
		ok = same && f == replica.SlotFree
	case replica.SlotCopied:
		ok = same && f == replica.SlotCopying
	case replica.SlotSealed:
		ok = same && f == replica.SlotCopied
	case replica.SlotTorn:
		ok = daemon && same && (f == replica.SlotCopying || f == replica.SlotCopied)
	case replica.SlotFree:
		ok = daemon && to.Count() == from.Count()+1 && (f == replica.SlotSealed || f == replica.SlotTorn)
	}
	if ok {
		return nil
	}
	who := "a rank"
	if daemon {
		who = "the daemon"
	}
	return fmt.Errorf("slot word: {%d, %v} may not follow {%d, %v} by %s", to.Count(), t, from.Count(), f, who)
}
