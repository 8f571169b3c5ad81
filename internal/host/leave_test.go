package host

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// A daemon that was asked to end says what it waits for, and that it ends without it when its time is over: a step that is not on disk then would be
// missed by nobody until it is looked for.
func TestLeavingDaemonSaysWhatItGaveUp(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Options.DurableEvery = 1000 }))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var said []string
	var leaving sync.WaitGroup
	heard, left := make(chan struct{}), make(chan struct{})
	leaving.Go(func() {
		defer close(left)
		d.Leave(ctx, func(why string) {
			if said = append(said, why); len(said) == 1 {
				close(heard)
			}
		})
	})
	d.until("the question", func() bool { return d.leaving.words != nil })
	if asked := fixture.Only[control.Leaving](d.says()); len(asked) != 1 {
		t.Errorf("the leader is asked %d times", len(asked))
	}
	d.leaving.may(control.MayLeave{Why: "step 5 of job job is written to the durable tier first"})
	<-heard
	cancel()
	d.until("that it goes", func() bool { return d.leaving.goes })
	<-left
	leaving.Wait()
	if len(said) != 2 || !strings.Contains(said[1], "ends all the same") || !strings.Contains(said[1], "step 5 of job job is written") {
		t.Errorf("says %q", said)
	} else if !strings.Contains(said[1], "NOT on disk: step 5 of job job; memory has that for as long as the keepers run: start the daemons again") {
		t.Errorf("does not say what is not on disk, or what to do: %q", said[1])
	}
	if told := fixture.Only[control.Leaving](d.says()); len(told) != 1 || !told[0].Goes {
		t.Errorf("the leader is told %+v, want that the daemon goes", told)
	}
}

// A daemon that may end says so to the leader that it has, where that did not let it go, and greets no other: a leader that hears of it later than of the
// link would count on it.
func TestDaemonThatGoesGreetsNobody(t *testing.T) {
	for _, owes := range []bool{false, true} {
		d := newRig(t)
		if owes {
			d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Options.DurableEvery = 1000 }))
		}
		greets := func() bool {
			var r running
			r.serve(d.Host)
			return !r.goes
		}
		d.handle(leaveAsked{make(chan control.MayLeave, 1)})
		asked := fixture.Only[control.Leaving](d.says())
		if len(asked) != 1 || asked[0].Goes == owes || greets() != owes {
			t.Errorf("something is to be written: %v; the leader is told %+v, and another would be greeted: %v", owes, asked, greets())
		}
		d.leaderSays(control.MayLeave{Why: "step 5 of job job is written to the durable tier first"})
		if greets() != owes {
			t.Errorf("something is to be written: %v; it is to wait, and another leader would be greeted: %v", owes, greets())
		}
		d.leaderSays(control.MayLeave{})
		if greets() {
			t.Error("it may end, and greets another leader")
		}
	}
}

// A daemon that was started again knows no job until a leader has told it of them: it asks, and goes by itself only once nobody has answered.
func TestDaemonIsAskedToEndBeforeItKnowsTheJobs(t *testing.T) {
	d := newRig(t)
	d.informed = false
	d.handle(leaveAsked{make(chan control.MayLeave, 1)})
	if said := fixture.Only[control.Leaving](d.says()); len(said) != 1 || said[0].Goes || d.leaving.goes {
		t.Errorf("it says %+v, and goes: %v", said, d.leaving.goes)
	}
	var p parting
	p.serve(d.Host)
	if said := fixture.Only[control.Leaving](d.says()); len(said) != 1 || !said[0].Goes || !d.leaving.goes {
		t.Errorf("it says %+v, and goes: %v", said, d.leaving.goes)
	}
	if len(p.owed) != 1 || !strings.Contains(p.owed[0], "NOT on disk: what jobs have committed, unless it was written before (no leader has told this daemon of any") {
		t.Errorf("it leaves %q", p.owed)
	}
}
