package host

import (
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// A leader that was deposed, and has not heard of it, tells what was committed before: the job here stays where it is, and what is committed
// stays in the arena.
func TestAnOlderViewIsNotTaken(t *testing.T) {
	d := newRig(t)
	before := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.LastIndex, j.Options.Slots = 18, 2 })
	lj := d.put(fixture.Changed(before, func(j *replica.Job) {
		j.LastIndex, j.Committed, j.Position = 20, fixture.Gen(3, 6), replica.Position{Epoch: 3, Step: 6}
	}))
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 0, fixture.Gen(3, 6))
	d.views(control.View{Index: 18, Term: 8, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{before}})
	if lj.Job.Committed != fixture.Gen(3, 6) || lj.Job.LastIndex != 20 {
		t.Errorf("went back to %v of entry %d", lj.Job.Committed, lj.Job.LastIndex)
	}
	if _, _, ok := lr.Arena.At(shm.Slot, fixture.Gen(3, 6)); !ok {
		t.Errorf("what is committed was freed: %v", states(lr.Arena, shm.Slot))
	}
	later := fixture.Changed(lj.Job, func(j *replica.Job) { j.Committed, j.Position = fixture.Gen(3, 7), replica.Position{Epoch: 3, Step: 7} })
	d.views(control.View{Index: later.LastIndex, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{later}})
	if lj.Job.Committed != fixture.Gen(3, 7) {
		t.Errorf("a newer view is not taken: %v", lj.Job.Committed)
	}
}
