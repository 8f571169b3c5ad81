package host

import (
	"errors"
	"github.com/replicad/replicad/internal/host/act"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// scrubsNow has every copy that lies here be old enough to be read, and reads one slice.
func (d *rig) scrubsNow() (read bool, bad bool) {
	d.t.Helper()
	r := d.readsNext()
	if r == nil {
		return false, false
	}
	return true, d.hasRead(r)
}

// readsNext is what the scrub room wants read, some seconds after it was asked last; nil: nothing.
func (d *rig) readsNext() *scrub.Read {
	d.scrubAt = d.scrubAt.Add(6 * time.Second)
	d.turn(d.scrub, d.scrubAt)
	select {
	case r := <-d.hands.Reads:
		return r
	default:
		return nil
	}
}

// hasRead reads it, and waits until a copy that is bad is given up.
func (d *rig) hasRead(r *scrub.Read) (bad bool) {
	d.t.Helper()
	err := r.Verify()
	d.scrub.Learn(d.scrubAt, act.Ended{Of: r, Err: err})
	if bad = errors.Is(err, shm.ErrCorrupt); bad {
		d.turn(d.scrub, d.scrubAt)
		d.until("the copy is given up", func() bool { return r.Copy.Arena.Word(r.Copy.Place).Count() != r.Copy.Info.Count })
	}
	return bad
}

// A bit that flips in a sealed slot is found though nobody asks for the part, and the copy is not reported any more. Nothing is kept from being
// freed by that.
func TestScrubFindsAFlippedBit(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lj.Job.Phase = replica.Open
	lr := d.attach(lj, 0)
	good, bad := d.seal(lr.Arena, slot(0), fixture.Gen(3, 5), 1), d.seal(lr.Arena, slot(1), fixture.Gen(3, 4), 2)
	d.scrubsNow() // sees them
	h := lr.Arena.Header()
	at := int64(h.SlotOffset + h.SlotStride + h.ReplicatedBytes - 3)
	at -= at % 8
	d.write(lr.Arena, at, d.word(lr.Arena, at)^1)
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
	if st := d.scrub.Status(); found != 1 || st.Bad != 1 || st.Bytes != good.Bytes+bad.Bytes {
		t.Errorf("%d found, %+v; want one of two copies, of %d and %d bytes", found, st, good.Bytes, bad.Bytes)
	}
	if a, b := lr.Arena.Word(slot(0)).State(), lr.Arena.Word(slot(1)).State(); a != replica.SlotSealed || b != replica.SlotFree || len(held(lr.Arena)) != 0 {
		t.Errorf("the good copy is %v, the bad one %v, held %v", a, b, held(lr.Arena))
	}
	if n := d.log.Count(`"event":"rotten_copy"`); n != 1 {
		t.Errorf("%d lines say so:\n%s", n, d.log.String())
	}
	for _, l := range lj.View().Copies() {
		if l.Info.Generation == bad.Generation {
			t.Errorf("still reported: %v", l.Held)
		}
	}
}

// What is freed while it is read is not taken for bad, and the arena stays mapped until the reading has ended.
func TestScrubOfWhatIsFreed(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lj.Job.Phase = replica.Open
	lr := d.attach(lj, 0)
	d.seal(lr.Arena, slot(0), fixture.Gen(3, 5), 1)
	d.scrubsNow()
	q := d.readsNext()
	if q == nil {
		t.Fatal("nothing to read")
	}
	if !lr.Arena.Free(slot(0)) {
		t.Fatal("the scrubber keeps the place from being freed")
	}
	other := d.seal(lr.Arena, slot(0), fixture.Gen(3, 6), 2)
	end := q.Verify()
	d.notify(d.scrub, act.Ended{Of: q, Err: end})
	if info, err := lr.Arena.Sealed(slot(0)); end == nil || d.scrub.Status().Bad != 0 || err != nil || info.Root != other.Root {
		t.Errorf("ended with %v, %+v; the place has %v (%v)", end, d.scrub.Status(), info.Generation, err)
	}
}

// A job that recovers is not disturbed, nor are the others here.
func TestScrubRestsDuringRecovery(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.seal(lr.Arena, slot(0), fixture.Gen(3, 5), 1)
	for phase, want := range map[replica.JobPhase]bool{replica.Opening: false, replica.Open: true, replica.Closed: false, replica.Planned: false, replica.Ended: false} {
		d.scrub = scrub.New(rooms{d.Host}, d.Host.log, uint64(d.cfg.ScrubRate))
		lj.Job.Phase = replica.Open
		d.scrubsNow()
		lj.Job.Phase = phase
		if read, _ := d.scrubsNow(); read != want {
			t.Errorf("%v: read %v, want %v", phase, read, want)
		}
	}
}
