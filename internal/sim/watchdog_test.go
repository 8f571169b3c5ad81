//go:build !race

package sim

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// sharded is a world of two ranks, each a group of its own, with two slots and steps of some hundred milliseconds.
func sharded(t *testing.T, ctx context.Context, dir string) *world {
	for seed := uint64(1); ; seed++ {
		w := newWorld(t, ctx, seed, dir)
		if len(w.names) >= 4 && w.world == 2 && w.groups[0] != w.groups[1] && w.cadence <= 1 {
			w.pass, w.warm, w.slots, w.takes, w.deaf = 100*time.Millisecond, true, 2, 0, map[replica.Part][]replica.NodeName{}
			return w
		}
	}
}

// TestCommitsGoOnWhereAMirrorTakesNothing: a mirror that never takes a group's part, and never says why, costs some seconds of commits, not
// the run; where the next one does not take it either, that is said, with what a fault would cost.
func TestCommitsGoOnWhereAMirrorTakesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := sharded(t, ctx, dir)
		go w.raft.elect(ctx)
		for _, n := range w.names {
			w.machines[n].start()
		}
		defer func() {
			w.end()
			cancel()
			time.Sleep(time.Second) // a stream that was being opened to one of them
			if t.Failed() {
				w.save(t)
			}
		}()
		part := replica.OfGroup(1)
		job := func() *replica.Job { return w.raft.now().Jobs[w.job] }
		// plays has the group's mirror take nothing of it from now on, and tells what the leader logs in so many seconds.
		plays := func(long time.Duration) (mirror replica.NodeName, committed replica.Step, said string) {
			j := job()
			if j == nil || j.Phase != replica.Open || len(j.GroupMirrors[1]) != 1 {
				t.Fatalf("the job does not train with a mirror of group 1: %+v", j)
			}
			mirror = j.GroupMirrors[1][0]
			w.mu.Lock()
			w.deaf[part] = append(w.deaf[part], mirror)
			from := w.trace.Len()
			w.mu.Unlock()
			time.Sleep(long)
			w.mu.Lock()
			defer w.mu.Unlock()
			var lines []string
			for line := range strings.Lines(string(w.trace.Bytes()[from:])) {
				if strings.Contains(line, `"event":"commit`) {
					lines = append(lines, line)
				}
			}
			return mirror, j.Position.Step, strings.Join(lines, "")
		}
		time.Sleep(20 * time.Second)
		epoch := job().Epoch
		mirror, committed, said := plays(20 * time.Second)
		is := job()
		if slices.Contains(is.GroupMirrors[1], mirror) || is.Position.Step < committed+20 || is.Epoch != epoch {
			t.Errorf("step %d was committed when %s went deaf to %v; 20 s later step %d is, mirrors %v, epoch %d", committed, mirror, part, is.Position.Step, is.GroupMirrors, is.Epoch)
		}
		for _, want := range []string{`"event":"commit_stalled"`, `one more fault would cost the `, "group 1 lies on ", "its mirror, node " + string(mirror) + ", does not take it", `"event":"commits_again"`} {
			if !strings.Contains(said, want) {
				t.Errorf("the log does not say %s:\n%s", want, said)
			}
		}
		_, committed, said = plays(25 * time.Second)
		if is := job(); is.Position.Step > committed+3 || !strings.Contains(said, "moved in this epoch already") {
			t.Errorf("25 s after the next mirror went deaf: committed %d, was %d:\n%s", is.Position.Step, committed, said)
		}
	})
}
