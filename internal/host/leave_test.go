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
	d.until("the question", func() bool { return d.leaving != nil })
	if asked := fixture.Only[control.Leaving](d.says()); len(asked) != 1 {
		t.Errorf("the leader is asked %d times", len(asked))
	}
	d.mayLeave(control.MayLeave{Why: "step 5 of job job is written to the durable tier first"})
	<-heard
	cancel()
	<-left
	leaving.Wait()
	if len(said) != 2 || !strings.Contains(said[1], "ends all the same") || !strings.Contains(said[1], "step 5 of job job") {
		t.Errorf("says %q", said)
	}
}
