package sim

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// TestAllDaemonsAreAskedToEnd: SIGTERM of all daemons within moments writes what is committed, whoever leads when, and however long daemons take to end
// once they may, or however shortly before they were started again. It used to be lost where the leadership moved: the next leader counted on daemons
// that the last one had let go. And daemons that no leader had told of the jobs yet took it that there were none.
func TestAllDaemonsAreAskedToEnd(t *testing.T) {
	for s := *seed; s < *seed+uint64(*episodes); s += racing.Stride {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			t.Parallel()
			shutDown(t, s)
		})
	}
}

// shutDown trains a job for some seconds, and asks all daemons to end.
func shutDown(t *testing.T, seed uint64) {
	dir, err := os.MkdirTemp(quick(), "sim")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		w := newWorld(t, ctx, seed, dir)
		w.durable, w.pass = 1_000_000, 100*time.Millisecond // nothing is written before
		go w.raft.elect(ctx)
		for _, n := range w.names {
			w.machines[n].start()
		}
		rng := w.dice("operator", 0)
		job := func() *replica.Job { return w.now() }
		for j := job(); j == nil || j.Committed.Step < j.Start()+5; j = job() {
			time.Sleep(rng.below(time.Second))
		}
		owed := job().Committed
		again := rng.rng.IntN(3) // 0: no daemon is started again, 1: one is, 2: all are
		for i, n := range w.names {
			if again == 2 || again == 1 && i == 0 {
				w.machines[n].kill()
				w.machines[n].serve()
				time.Sleep(rng.below(100 * time.Millisecond))
			}
		}
		time.Sleep(rng.below(2 * time.Second))
		w.slow.Store(int64(pick(rng.rng, 0, 0, 8*time.Second)))
		var ends sync.WaitGroup
		spread := pick(rng.rng, 0, 50*time.Millisecond, time.Second)
		for _, n := range w.names {
			after := rng.below(spread + 1)
			ends.Go(func() {
				time.Sleep(after)
				w.machines[n].term()
			})
		}
		for range rng.rng.IntN(3) {
			time.Sleep(rng.below(2 * time.Second))
			w.tracef("the leader falls")
			w.raft.depose()
		}
		ends.Wait()
		if j := job(); j.Durable.Compare(owed) < 0 {
			w.failf("all daemons have ended, step %d was committed when they were asked to, and step %d is on disk", owed.Step, j.Durable.Step)
		}
		for _, n := range w.names {
			w.machines[n].crash()
		}
		cancel()
		if w.failed > 0 || *all {
			w.save(t)
		}
	})
}

// term is SIGTERM of the machine's daemon: it returns when the daemon has ended, which takes a moment once it may.
func (m *machine) term() {
	d := m.running()
	ctx, cancel := context.WithTimeout(d.ctx, timing().StopGrace)
	defer cancel()
	d.host.Leave(ctx, func(why string) { m.w.tracef("%s: was asked to end: %s", m.name, why) })
	m.w.tracef("%s: ends", m.name)
	if leads, _ := m.w.raft.leads(); leads == m.name {
		m.w.raft.handOver()
	}
	d.pause(d.below(500 * time.Millisecond))
	m.kill()
}
