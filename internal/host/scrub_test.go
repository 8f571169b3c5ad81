package host

import (
	"context"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// scrubsNow has every copy that lies here be old enough to be read, and reads one slice.
func (d *rig) scrubsNow() (read bool, bad bool) {
	d.t.Helper()
	for l, s := range d.scrubs {
		s.since = s.since.Add(-scrubAfter)
		d.scrubs[l] = s
	}
	var q sliceWanted
	if q.serve(d.Host); !q.found {
		return false, false
	}
	end := sliceEnd{of: &q, err: q.verify()}
	end.serve(d.Host)
	if end.bad {
		gone := make(chan struct{})
		go func() {
			d.giveUp(context.Background(), &q)
			close(gone)
			d.ask(context.Background(), calls(func() {})) // an event, for until to look again
		}()
		d.until("the copy is given up", func() bool {
			select {
			case <-gone:
				return true
			default:
				return false
			}
		})
	}
	return true, end.bad
}

// A bit that flips in a sealed slot is found though nobody asks for the part, and the copy is not reported any more. Nothing is kept from being
// freed by that.
func TestScrubFindsAFlippedBit(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lj.job.Phase = replica.Open
	lr := d.attach(lj, 0)
	good, bad := d.seal(lr.arena, slot(0), fixture.Gen(3, 5), 1), d.seal(lr.arena, slot(1), fixture.Gen(3, 4), 2)
	d.scrubsNow() // sees them
	h := lr.arena.Header()
	at := int64(h.SlotOffset + h.SlotStride + h.ReplicatedBytes - 3)
	at -= at % 8
	d.write(lr.arena, at, d.word(lr.arena, at)^1)
	found := 0
	for {
		read, bad := d.scrubsNow()
		if !read {
			break
		}
		if bad {
			found++
		}
	}
	if found != 1 || d.scrubbed.Bad != 1 || d.scrubbed.Bytes != good.Bytes+bad.Bytes {
		t.Errorf("%d found, %+v; want one of two copies, of %d and %d bytes", found, d.scrubbed, good.Bytes, bad.Bytes)
	}
	if a, b := lr.arena.Word(slot(0)).State(), lr.arena.Word(slot(1)).State(); a != replica.SlotSealed || b != replica.SlotFree || len(held(lr.arena)) != 0 {
		t.Errorf("the good copy is %v, the bad one %v, held %v", a, b, held(lr.arena))
	}
	if n := d.log.Count(`"event":"rotten_copy"`); n != 1 {
		t.Errorf("%d lines say so:\n%s", n, d.log.String())
	}
	for _, l := range lj.parts() {
		if l.Info.Generation == bad.Generation {
			t.Errorf("still reported: %v", l.Held)
		}
	}
}

// What is freed while it is read is not taken for bad, and the arena stays mapped until the reading has ended.
func TestScrubOfWhatIsFreed(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lj.job.Phase = replica.Open
	lr := d.attach(lj, 0)
	d.seal(lr.arena, slot(0), fixture.Gen(3, 5), 1)
	d.scrubsNow()
	for l, s := range d.scrubs {
		s.since = s.since.Add(-time.Hour)
		d.scrubs[l] = s
	}
	var q sliceWanted
	if q.serve(d.Host); !q.found {
		t.Fatal("nothing to read")
	}
	if !lr.arena.Free(slot(0)) {
		t.Fatal("the scrubber keeps the place from being freed")
	}
	other := d.seal(lr.arena, slot(0), fixture.Gen(3, 6), 2)
	end := sliceEnd{of: &q, err: q.verify()}
	end.serve(d.Host)
	if info, err := lr.arena.Sealed(slot(0)); end.err == nil || end.bad || err != nil || info.Root != other.Root {
		t.Errorf("ended with %v, bad %v; the place has %v (%v)", end.err, end.bad, info.Generation, err)
	}
}

// A job that recovers is not disturbed, nor are the others here.
func TestScrubRestsDuringRecovery(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.seal(lr.arena, slot(0), fixture.Gen(3, 5), 1)
	for phase, want := range map[replica.JobPhase]bool{replica.Opening: false, replica.Open: true, replica.Closed: false, replica.Planned: false, replica.Ended: false} {
		d.scrubs = scrubs{}
		lj.job.Phase = replica.Open
		d.scrubsNow()
		lj.job.Phase = phase
		if read, _ := d.scrubsNow(); read != want {
			t.Errorf("%v: read %v, want %v", phase, read, want)
		}
	}
}
