package host

import (
	"github.com/replicad/replicad/internal/host/job"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// A node without a leader says by itself what a fault would cost now, at its launchers and in its own status, with since when it has heard none and what it
// takes to have one: once, and again when the price has doubled. It used to say nothing, and then 82 steps were lost.
func TestANodeSaysWhatAFaultWouldCost(t *testing.T) {
	d := newRig(t)
	d.cfg.Voters = []config.Voter{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}
	record := fixture.Job()
	lj := d.put(record)
	lr := d.attach(lj, 0)
	_, end := d.listener()
	began := time.Now()
	step := record.Position.Step
	looks := func(from, to time.Duration) {
		for at := from; at < to; at += time.Second {
			step++
			d.live(lr, record.Epoch, step, replica.Idle)
			job.SayExposure(lj, began.Add(at))
		}
	}
	looks(0, 20*time.Second/2) // a leader is heard: it is left to speak
	d.link, d.unlinked = nil, began.Add(10*time.Second)
	looks(10*time.Second, 33*time.Second)
	for i, want := range []string{
		"one more fault would cost 16 steps, 14s of work (committed 5, live 21): no leader has been heard for 5s, so nothing is committed, and training goes on: 2 of the 3 voters must run",
		"one more fault would cost 32 steps, 30s of work (committed 5, live 37): no leader has been heard for 21s",
	} {
		if text := end.note(); !strings.HasPrefix(text, want) {
			t.Errorf("line %d: %q, want %q", i, text, want)
		}
	}
	d.unlinked = time.Now().Add(-20 * time.Second)
	var own Status
	own.serve(d.Host)
	i := slices.IndexFunc(own.Jobs, func(j control.JobStatus) bool { return j.ID == record.ID })
	if i < 0 || own.Jobs[i].Uncommitted != 33 || !own.Jobs[i].AtRisk || len(own.Jobs[i].Waiting) != 1 || !strings.Contains(own.Jobs[i].Waiting[0], "this node has heard no leader for") {
		t.Errorf("its own status is %+v", own.Jobs)
	}
}
