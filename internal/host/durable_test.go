package host

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// An uncommitted generation that would be due once committed used to be held: with commits out for a while such generations
// took every slot, no candidate found one, and commits never came back.
func TestDurableHoldsOnlyWhatIsWritten(t *testing.T) {
	at := func(s replica.Step) replica.Generation { return replica.Generation{Epoch: 1, Step: s} }
	job := &replica.Job{Phase: replica.Open, Options: replica.Options{DurableEvery: 50}, Committed: at(100)}
	for _, s := range []replica.Step{50, 99, 100, 150} {
		if durableHold(job, at(s)) {
			t.Errorf("step %d is held and nothing is being written", s)
		}
	}
	job.Writer = &replica.DurableWrite{Generation: at(50)}
	for s, want := range map[replica.Step]bool{50: true, 99: false, 100: false, 150: false} {
		if got := durableHold(job, at(s)); got != want {
			t.Errorf("step %d: held %v, want %v while 50 is written", s, got, want)
		}
	}
}

// A node that misses the view between two durable writes used to take its shard of the second for begun.
func TestNextDurableWriteIsAnother(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	write := func(g replica.Generation) []control.ShardReport {
		lj.job = fixture.Changed(lj.job, func(j *replica.Job) {
			j.Writer = &replica.DurableWrite{Generation: g, Shards: []replica.Shard{{Part: replica.OfRank(0), Node: "n1"}}}
		})
		d.durable(lj)
		d.durable(lj)
		return fixture.Only[control.ShardReport](d.says())
	}
	for _, g := range []replica.Generation{fixture.Gen(3, 5), fixture.Gen(3, 9)} {
		if got := write(g); len(got) != 1 || got[0].Generation != g {
			t.Errorf("of generation %v it says %+v, want one report", g, got)
		}
	}
	if len(lj.written) != 1 || lj.written[replica.OfRank(0)].Generation != fixture.Gen(3, 9) {
		t.Errorf("a new leader would be told %+v", lj.written)
	}
}

// The leader hears how far a shard is while bytes of it are written, and nothing of one that stands still.
func TestAShardThatGrowsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []uint64
		counted := growing(func(written uint64) { said = append(said, written) })
		read := func(takes time.Duration) func(int, []byte) ([]byte, error) {
			return counted(func(int, []byte) ([]byte, error) { time.Sleep(takes); return make([]byte, 1000), nil })
		}
		slow, fast := read(growsEvery/4), read(time.Millisecond)
		for i := range 9 {
			slow(i, nil) //nolint:errcheck // it has none
		}
		for i := range 100 {
			fast(i, nil) //nolint:errcheck // it has none
		}
		if want := []uint64{4000, 8000}; !slices.Equal(said, want) {
			t.Errorf("said %v, want %v", said, want)
		}
	})
}
