package sim

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/racing"
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

// TestALargeStateIsCommittedWhereLeadersChange: leaders change faster than a part is sent. Each used to name a candidate of its own, with which the push of
// the one before ended: 1 commit at step 133. A candidate outlives its leader, so that a commit comes each time that a part needs twice, and hardly a byte is sent
// in vain.
func TestALargeStateIsCommittedWhereLeadersChange(t *testing.T) {
	t.Parallel()
	deposed, lasts := 31, 270*time.Second
	if racing.On { // a quarter: it takes ten times as long
		deposed, lasts = 7, lasts/4
	}
	dir, err := os.MkdirTemp(quick(), "sim")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := sharded(t, ctx, dir)
		w.weights, w.takes, w.pass, w.frozen, w.durable = part/stands, needs, 250*time.Millisecond, false, 0
		w.slowest = rate / stands / 25
		w.regions = w.regions[:2]
		w.regions[0].Shape, w.regions[0].Bytes = []uint64{w.weights / 4}, w.weights
		w.net.pace = w.pace()
		w.slow.Store(int64(3 * time.Second))
		job := w.now
		defer w.trains(ctx, cancel)()
		for job().Position.Step < 2 {
			time.Sleep(100 * time.Millisecond)
		}
		began, at, newest, commits, longest := time.Now(), time.Now(), job().Committed, 0, time.Duration(0)
		sent, epoch := w.net.total(), job().Epoch
		for falls := 1; time.Since(began) < lasts; time.Sleep(20 * time.Millisecond) {
			if falls <= deposed && time.Since(began) >= time.Duration(falls)*lasts/time.Duration(deposed+1) {
				w.raft.depose()
				falls++
			}
			if is := job().Committed; is != newest {
				newest, commits, longest, at = is, commits+1, max(longest, time.Since(at)), time.Now()
			}
		}
		longest = max(longest, time.Since(at))
		perCommit := float64(w.net.total()-sent) / float64(max(commits, 1)) / float64(w.world) / float64(w.weights)
		t.Logf("%d commits in %v, the longest without one %v; sent %.2f states for each", commits, lasts, longest, perCommit)
		if job().Epoch != epoch {
			t.Errorf("epoch %d became %d: %+v", epoch, job().Epoch, job().Faults)
		}
		if longest > mostWait || perCommit > mostSent {
			t.Errorf("%d leaders in %v, parts of %d bytes at %.0f bytes a second: %v without a commit, want at most %v; %.2f states sent for each commit, want at most %.1f", deposed, lasts, part, rate, longest, mostWait, perCommit, mostSent)
		}
	})
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
		for _, n := range w.names {
			w.machines[n].crash()
		}
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
