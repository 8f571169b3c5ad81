package node

import (
	"testing"

	"github.com/replicad/replicad/replica"
)

// An uncommitted generation that would be due once committed used to be held: with commits out for a while such generations
// took every slot, no candidate found one, and commits never came back.
func TestDurableHoldsOnlyWhatIsCommitted(t *testing.T) {
	job := &replica.Job{Phase: replica.Open, Options: replica.Options{DurableEvery: 50}, Committed: replica.Generation{Epoch: 1, Step: 100}}
	for _, c := range []struct {
		step, durable replica.Step
		writer        *replica.DurableWrite
		want          bool
	}{
		{step: 100, want: true},
		{step: 150, want: false},               // due one day, not committed
		{step: 99, want: false},                // never due
		{step: 50, want: false},                // its time is over
		{step: 100, durable: 100, want: false}, // written
		{step: 100, writer: &replica.DurableWrite{Generation: replica.Generation{Epoch: 1, Step: 50}}, want: false},
		{step: 50, writer: &replica.DurableWrite{Generation: replica.Generation{Epoch: 1, Step: 50}}, want: true},
	} {
		j := *job
		j.Durable.Step, j.Writer = c.durable, c.writer
		if got := durableHold(&j, replica.Generation{Epoch: 1, Step: c.step}); got != c.want {
			t.Errorf("step %d, committed 100, durable %d, writer %v: held %v, want %v", c.step, c.durable, c.writer, got, c.want)
		}
	}
}
