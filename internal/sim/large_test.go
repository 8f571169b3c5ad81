//go:build !race

package sim

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// A large state: 1 GiB a part over 100 MB/s. A byte here stands for virtually 1024 of them.
const (
	part     = 1 << 30
	rate     = 100e6
	stands   = 1024
	needs    = time.Duration(part / rate * float64(time.Second)) // of a part from node to node
	mostWait = 2 * needs
	mostSent = 1.2
)

// TestALargeStateIsCommittedWhereLeadersChange: leaders change faster than a part is sent, connections break, daemons start again. Each leader used to name a
// candidate of its own, with which the push of the one before ended: 1 commit at step 133. A candidate outlives its leader, and a push goes on from what the
// mirror has. So a commit comes each time that a part needs twice, and hardly a byte is sent in vain.
func TestALargeStateIsCommittedWhereLeadersChange(t *testing.T) {
	for _, c := range []struct {
		name  string
		lasts time.Duration
		times int
		fault func(w *world, n int)
	}{
		{"leaders change", 270 * time.Second, 31, func(w *world, _ int) { w.raft.depose() }},
		{"nothing happens", 120 * time.Second, 0, nil},
		{"connections break", 60 * time.Second, 14, func(w *world, _ int) {
			for i, a := range w.names {
				for _, b := range w.names[:i] {
					w.net.hangUp(a, b)
				}
			}
		}},
		{"daemons start again", 90 * time.Second, 8, func(w *world, n int) {
			m := w.machines[w.names[n%w.trainers]]
			m.kill()
			m.serve()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp(quick(), "sim")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			bubble.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				w := sharded(t, ctx, dir)
				w.large()
				defer w.trains(ctx, cancel)()
				w.judgeLarge(c.lasts, c.times, c.fault)
			})
		})
	}
}

// large gives the ranks such a state, and daemons that link to the next leader late.
func (w *world) large() {
	w.weights, w.takes, w.pass, w.frozen, w.durable = part/stands, needs, 250*time.Millisecond, false, 0
	w.slowest = rate / stands / 25
	w.regions = w.regions[:2]
	w.regions[0].Shape, w.regions[0].Bytes = []uint64{w.weights / 4}, w.weights
	w.net.pace = w.pace()
	w.slow.Store(int64(3 * time.Second))
}

// judgeLarge has so many faults befall the job, and looks at its commits.
func (w *world) judgeLarge(lasts time.Duration, times int, fault func(*world, int)) {
	for w.now().Position.Step < 2 {
		time.Sleep(100 * time.Millisecond)
	}
	began, at, newest, commits, longest := time.Now(), time.Now(), w.now().Committed, 0, time.Duration(0)
	sent, until, epoch := w.net.total(), w.net.total(), w.now().Epoch
	for n := 0; time.Since(began) < lasts; time.Sleep(20 * time.Millisecond) {
		if n < times && time.Since(began) >= time.Duration(n+1)*lasts/time.Duration(times+1) {
			fault(w, n)
			n++
		}
		if is := w.now().Committed; is != newest {
			newest, commits, longest, at = is, commits+1, max(longest, time.Since(at)), time.Now()
			until = w.net.total()
		}
	}
	longest = max(longest, time.Since(at))
	perCommit := float64(until-sent) / float64(max(commits, 1)) / float64(w.world) / float64(w.weights)
	w.t.Logf("%d commits in %v, the longest without one %v; sent %.2f states for each", commits, lasts, longest, perCommit)
	if w.now().Epoch != epoch {
		w.t.Errorf("epoch %d became %d: %+v", epoch, w.now().Epoch, w.now().Faults)
	}
	if longest > mostWait || perCommit > mostSent {
		w.t.Errorf("%d times in %v, parts of %d bytes at %.0f bytes a second: %v without a commit, want at most %v; %.2f states sent for each commit, want at most %.1f", times, lasts, part, rate, longest, mostWait, perCommit, mostSent)
	}
}

// total is how many bytes have been sent between nodes, over paced connections.
func (n *network) total() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent
}

// trains starts everything, and waits for the job to open. What it returns ends everything.
func (w *world) trains(ctx context.Context, cancel func()) (end func()) {
	go w.raft.elect(ctx)
	for _, n := range w.names {
		w.machines[n].start()
	}
	for w.now() == nil || w.now().Phase != replica.Open {
		time.Sleep(100 * time.Millisecond)
	}
	return func() {
		w.end()
		cancel()
		time.Sleep(time.Second) // a stream that was being opened to one of them
		if w.t.Failed() || *all {
			w.save(w.t)
		}
	}
}

// TestWithoutALeaderTwoSlotsCaptureAnew: no majority for longer than holder_grace, two slots, and then a rank dies. What no leader was told of gives way to
// newer captures; what one was told of may be committed, and stays. With a third slot it costs as little either way.
func TestWithoutALeaderTwoSlotsCaptureAnew(t *testing.T) {
	for _, slots := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d slots", slots), func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp(quick(), "sim")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			bubble.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				w := sharded(t, ctx, dir)
				w.slots, w.pass, w.durable = slots, 250*time.Millisecond, 0
				defer w.trains(ctx, cancel)()
				for w.now().Position.Step < 5 {
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(50 * time.Millisecond) // the next candidate is named, and no rank has come to it
				w.raft.silence()
				time.Sleep(timing().HolderGrace + 20*time.Second)
				before, at, epoch := w.furthest(), w.now().Position.Step, w.now().Epoch
				w.mu.Lock()
				w.calm = false
				w.mu.Unlock()
				w.alive()[0].end(137)
				w.raft.speak()
				for w.now().Epoch == epoch || w.now().Phase != replica.Open {
					time.Sleep(100 * time.Millisecond)
				}
				lost := before - w.now().Plan.Generation.Step
				t.Logf("committed %d, ranks at %d when one died, the job goes on from %d", at, before, w.now().Plan.Generation.Step)
				if lost > 24 { // two captures are 16 steps apart, and take some
					t.Errorf("%d steps are lost", lost)
				}
			})
		})
	}
}
