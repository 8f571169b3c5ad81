package host

import (
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/host/rank"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// closedJob is a rank's arena with an older generation in place 0 and the committed one in place 1, and a job whose epoch is closed.
func closedJob(d *rig) (*job.Job, *rank.Rank) {
	job := fixture.Job()
	job.Committed = fixture.Gen(3, 5)
	lj := d.put(job)
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 0, fixture.Gen(3, 4))
	d.both(lr.Arena, 1, fixture.Gen(3, 5))
	job.Phase, job.ClosedEpoch = replica.Closed, job.Epoch
	return lj, lr
}

// flip flips a bit of what lies in a slot.
func (d *rig) flip(lr *rank.Rank, i int) {
	h := lr.Arena.Header()
	at := int64(h.SlotOffset + uint64(i)*h.SlotStride + 17)
	d.write(lr.Arena, at, d.word(lr.Arena, at)^1)
}

// allRead waits until the newest generation of a closed job's rank was read.
func (d *rig) allRead(lj *job.Job, lr *rank.Rank) {
	d.t.Helper()
	d.until("what lies here is read", func() bool {
		for _, p := range []shm.Place{slot(1), ring(1)} {
			rd := d.restores.Reading(lj.Job.ID, lr.Arena, p)
			if rd == nil {
				return false
			}
			select {
			case <-rd.Done():
			default:
				return false
			}
		}
		return len(held(lr.Arena)) == 0
	})
}

// A bad copy is given up and reported while the job waits for its ranks: the plan does without it.
func TestABitFlippedBeforeThePlanIsReportedBeforeIt(t *testing.T) {
	d := newRig(t)
	lj, lr := closedJob(d)
	d.flip(lr, 1)
	d.reconcile(lj)
	d.until("the copy is given up", func() bool { return lr.Arena.Word(slot(1)).State() == replica.SlotFree })
	if len(lj.Bad) != 1 || lj.Bad[0].Part != replica.OfGroup(0) || lj.Bad[0].Generation != fixture.Gen(3, 5) {
		t.Errorf("found bad: %+v", lj.Bad)
	}
}

// What was read since the fence is not read again by the restore; the next fence begins anew.
func TestARestoreTakesWhatWasReadSinceTheFence(t *testing.T) {
	d := newRig(t)
	lj, lr := closedJob(d)
	d.reconcile(lj)
	d.allRead(lj, lr)
	d.flip(lr, 1) // too late for this recovery's daemon: rp_load is left to find it
	f := fetch.Parts{Fetcher: d.hands.Fetches, Job: lj.Job, Plan: &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 5)}, Rank: 0}
	rehash := func() bool {
		got := make(chan bool, 1)
		go func() {
			got <- f.Rehash(t.Context(), lr.Arena, slot(1), replica.Source{Part: replica.OfGroup(0)})
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
		return good
	}
	if !rehash() {
		t.Error("a place that was read since the fence was read again")
	}
	lj.Job.Epoch, lj.Job.ClosedEpoch, lj.Job.Phase = 4, 4, replica.Planned // so that nothing is read ahead
	d.fence(lj)
	d.notify(d.restores, act.Changed{Job: lj.Job.ID})
	if rehash() {
		t.Error("a place counts as read that was read before the newest fence")
	}
}
