package host

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// While a plan is carried out the leader is told how far each rank is with it, and how long its bytes may take; that time passes is no news.
func TestALoadIsReported(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase, j.Epoch, j.ClosedEpoch = replica.Planned, 4, 3 }))
	lr := d.attach(lj, 0)
	r := d.reported(lj)
	if r.Epoch != lj.Job.Epoch || r.Phase != replica.Planned || r.Ranks[0].Ordered != 0 {
		t.Errorf("%+v", r)
	}
	g := lr.Arena.Geometry()
	if want := uint64(time.Duration(float64(g.ReplicatedBytes+g.PrivateBytes) / rank.LoadRate * float64(time.Second)).Milliseconds()); r.Ranks[0].LoadMS != want {
		t.Errorf("%d ms, want %d", r.Ranks[0].LoadMS, want)
	}
	lr.Ordered = rank.OrderKey{Epoch: lj.Job.Epoch, Action: wire.OrderLoad}
	if r := d.reported(lj); r.Ranks[0].Ordered != lj.Job.Epoch {
		t.Errorf("it was told to load: %+v", r.Ranks[0])
	}
	d.report(lj)
	if msgs := d.says(); len(msgs) != 0 {
		t.Errorf("nothing has changed: %v", msgs)
	}
}

// A rank that waited for one that hung was found to hang itself. In the next epoch it is asked anew: it trained on at once, the other one had left
// already, and it was killed 24 ms after the Resume.
func TestAHangEndsWithItsStepWord(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Hung, lr.Word = true, lr.Arena.Step()
	if r := d.reported(lj); !r.Ranks[0].Hung {
		t.Errorf("it hangs at %v, and the report says nothing", lr.Word)
	}
	lr.Word = replica.PackWord(lr.Word.Epoch()+1, lr.Word.Step(), replica.Idle)
	if r := d.reported(lj); r.Ranks[0].Hung {
		t.Errorf("it hung at %v, stands at %v, and is reported to hang", lr.Word, lr.Arena.Step())
	}
}
