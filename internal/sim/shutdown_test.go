package sim

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/host/writer"
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
		w.end()
		cancel()
		if w.failed > 0 || *all {
			w.save(t)
		}
	})
}

// TestAllDaemonsAreAskedToEndWithoutALeader: the leader falls for good at each moment around SIGTERM of all daemons, which are asked in each order. What
// was committed last, whether or not each daemon has heard of it, is in the store or whole in the spools, where a resume puts it together. It used to be in
// memory alone.
func TestAllDaemonsAreAskedToEndWithoutALeader(t *testing.T) {
	moments := []time.Duration{-50 * time.Millisecond, 0, 20 * time.Millisecond, 300 * time.Millisecond, 2050 * time.Millisecond, 2500 * time.Millisecond}
	const orders = 6
	for i := 0; i < len(moments)*orders; i += racing.Stride {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			shutDownMute(t, *seed+uint64(i), i%orders, moments[i/orders])
		})
	}
}

// shutDownMute asks all daemons to end in the n-th order, and has the leader fall some time after the first was.
func shutDownMute(t *testing.T, seed uint64, order int, falls time.Duration) {
	dir, err := os.MkdirTemp(quick(), "sim")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		w := newWorld(t, ctx, seed, dir)
		w.durable, w.pass, w.spooled = 1_000_000, 100*time.Millisecond, true
		go w.raft.elect(ctx)
		for _, n := range w.names {
			w.machines[n].start()
		}
		rng := w.dice("operator", 0)
		for j := w.now(); j == nil || j.Committed.Step < j.Start()+5; j = w.now() {
			time.Sleep(rng.below(time.Second))
		}
		time.Sleep(time.Second)
		var ends sync.WaitGroup
		ends.Go(func() {
			time.Sleep(50*time.Millisecond + falls)
			w.tracef("the leader falls, for good")
			w.raft.silence()
		})
		time.Sleep(50 * time.Millisecond)
		for k, i := range permuted(len(w.names), order) {
			ends.Go(func() {
				time.Sleep(time.Duration(k) * 10 * time.Millisecond)
				w.machines[w.names[i]].term()
			})
		}
		ends.Wait()
		if j := w.now(); j.Durable != j.Committed {
			if lacks := w.spools(ctx, j); lacks != "" {
				w.failf("all daemons have ended, and step %d is neither in the store nor in the spools: %s", j.Committed.Step, lacks)
			}
		}
		w.end()
		cancel()
		if w.failed > 0 || *all {
			w.save(t)
		}
	})
}

// permuted is the n-th order of so many, of its last three places at least.
func permuted(of, n int) (list []int) {
	rest := make([]int, of)
	for i := range rest {
		rest[i] = i
	}
	for len(rest) > 0 {
		i := n % len(rest)
		n /= len(rest)
		list, rest = append(list, rest[i]), slices.Delete(rest, i, i+1)
	}
	return list
}

// spools says what the next lives of the daemons do not find in their spools of what a job has committed, and of what that binds; empty: nothing.
func (w *world) spools(ctx context.Context, job *replica.Job) string {
	have, frozen := map[replica.Part]bool{}, map[replica.Part]bool{}
	for _, n := range w.names {
		sp, err := w.openSpool(ctx, n, 1)
		if err != nil {
			return err.Error()
		}
		left, passed := writer.LeftBehind(ctx, sp, n, w.cluster)
		for _, why := range passed {
			w.tracef("%s: passes over %s", n, why)
		}
		for _, p := range job.Parts {
			at, ok := writer.PickOf(left, job.ID, job.Committed, p)
			have[p.Part] = have[p.Part] || ok
			if !ok || !job.Durable.IsZero() {
				continue
			}
			for _, f := range at.Note.Frozen { // beside what binds it: one node writes both
				_, ok := writer.PickOf(left, job.ID, job.Committed, replica.PartRoot{Part: f.Part, Root: f.Root})
				frozen[f.Part] = frozen[f.Part] || ok
			}
		}
	}
	for _, p := range job.Parts {
		if !have[p.Part] {
			return fmt.Sprintf("no spool has %v", p.Part)
		}
	}
	for p, is := range frozen {
		if !is {
			return fmt.Sprintf("no spool has %v beside what binds it", p)
		}
	}
	return ""
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
