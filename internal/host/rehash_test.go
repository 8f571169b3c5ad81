package host

import (
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// A bit that flipped in a rank's own sealed slot was found by the rank only, in rp_load: each replacement failed in the same
// way, and the job ended for want of progress though another node held a good copy.
func TestAFlippedBitIsNotTakenForPresent(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.seal(lr.Arena, slot(0), fixture.Gen(3, 5), 1)
	d.seal(lr.Arena, slot(1), fixture.Gen(3, 4), 2)
	h := lr.Arena.Header()
	at := int64(h.SlotOffset + h.SlotStride + 17) // in slot 1
	d.write(lr.Arena, at, d.word(lr.Arena, at)^1)
	f := fetch.Parts{Fetcher: d.hands.Fetches, Job: lj.Job, Plan: &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 4)}, Rank: 0}
	for _, c := range []struct {
		place shm.Place
		good  bool
		state replica.SlotState
	}{{slot(0), true, replica.SlotSealed}, {slot(1), false, replica.SlotFree}} {
		got := make(chan bool, 1)
		go func() {
			got <- f.Rehash(t.Context(), lr.Arena, c.place, replica.Source{Part: replica.OfGroup(0), Root: replica.Digest{9}})
			d.ask(t.Context(), calls(func() {})) // an event, for until to look again
		}()
		var good bool
		d.until("the place is rehashed", func() bool {
			select {
			case good = <-got:
				return true
			default:
				return false
			}
		})
		if state := lr.Arena.Word(c.place).State(); good != c.good || state != c.state || lr.Arena.Readers(c.place) != 0 {
			t.Errorf("%v: good %v, %v, held %d; want %v, %v, not held", c.place, good, state, lr.Arena.Readers(c.place), c.good, c.state)
		}
	}
}
