package node

import (
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// The launcher's exit code tells a scheduler whether to start the job again.
func TestLauncherLearnsHowItsJobEnded(t *testing.T) {
	for reason, want := range map[string]int32{
		jobFinished:                       0,
		"ended by an operator":            1,
		"":                                1,
		"the site says: do not requeue: ": 1,
		recovery.DoNotRequeue + "recovered 8 times without a step beyond 5": ExitDoNotRequeue,
	} {
		d := newDesk(t)
		peer, end := d.session(0)
		l := &launcher{peer: peer, hello: wire.RunHello{Job: "job"}, accepted: true, job: testJob}
		d.put(changed(newJob(), func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, reason }))
		d.serveLauncher(l)
		h, body := end.reads()
		done, err := wire.ParseRefused(body)
		if err != nil || h.Type != wire.MRunDone || done.Code != want || done.Text != reason || !l.done {
			t.Errorf("%q: message %d, code %d, %q, %v; want code %d", reason, h.Type, done.Code, done.Text, err, want)
		}
	}
}
