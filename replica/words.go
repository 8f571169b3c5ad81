package replica

// The words of the control page that rank and daemon share (protocol section 3). Only their packing is here; who may
// change which from what to what is lock's. libreplicad/src/layout.h holds the same packing for C.

// Phase is what the training thread says of its live state.
type Phase uint8

// The phases of a step word.
const (
	Idle     Phase = 0 // live state is whole: step has been applied, the next not begun
	Updating Phase = 1 // inside the optimizer window of step
	Updated  Phase = 2 // window over, volatile regions not yet copied
)

func (p Phase) String() string {
	switch p {
	case Idle:
		return "IDLE"
	case Updating:
		return "UPDATING"
	case Updated:
		return "UPDATED"
	}
	return "INVALID"
}

// Word is a packed {epoch:24, step:38, phase:2}: the step word with its phase; good, committed and candidate words with phase 0.
// As integers words order by epoch, then step.
type Word uint64

// PackWord packs; epoch and step beyond their limits are the caller's broken invariant and are masked.
func PackWord(e Epoch, s Step, p Phase) Word {
	return Word(uint64(e&MaxEpoch)<<40 | uint64(s&MaxStep)<<2 | uint64(p&3))
}

func (w Word) Epoch() Epoch { return Epoch(w >> 40) }
func (w Word) Step() Step   { return Step(w>>2) & MaxStep }
func (w Word) Phase() Phase { return Phase(w & 3) }

// Made is the newest step whose update is whole: one that is being made is not made.
func (w Word) Made() Step {
	if w.Phase() == Updating && w.Step() > 0 {
		return w.Step() - 1
	}
	return w.Step()
}

func (w Word) Generation() Generation { return Generation{w.Epoch(), w.Step()} }

// Word packs the generation with phase 0.
func (g Generation) Word() Word { return PackWord(g.Epoch, g.Step, 0) }

// SlotState is the state of a slot or ring place.
type SlotState uint8

// States of a slot word, in the order a capture passes them.
const (
	SlotFree    SlotState = 0 // handed out by the daemon: a rank may take it
	SlotCopying SlotState = 1 // a rank copies into it
	SlotCopied  SlotState = 2 // bytes and chunk digests are whole; anyone entitled may seal it
	SlotSealed  SlotState = 3 // immutable until the daemon frees it
	SlotTorn    SlotState = 4 // given up by the daemon: never sealed; freed once its copies are joined
)

func (s SlotState) String() string {
	if int(s) < len(slotStateNames) {
		return slotStateNames[s]
	}
	return "INVALID"
}

var slotStateNames = [...]string{"FREE", "COPYING", "COPIED", "SEALED", "TORN"}

// SlotWord is a packed {use count:61, state:3}. The count rises each time the daemon frees the slot, so that a leftover
// compare-and-swap of an earlier use changes nothing.
type SlotWord uint64

// PackSlot packs a slot word.
func PackSlot(count uint64, s SlotState) SlotWord { return SlotWord(count<<3 | uint64(s&7)) }

func (w SlotWord) Count() uint64    { return uint64(w >> 3) }
func (w SlotWord) State() SlotState { return SlotState(w & 7) }
