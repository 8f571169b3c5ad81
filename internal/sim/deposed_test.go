//go:build !race

package sim

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// TestCommitsComeBackThoughLeadersFall: the daemon of a node that mirrors a part and runs no rank is killed and stays away, and the leader falls each
// seven seconds, which is sooner than daemon_grace and than a stall is said. The mirror moves and commits come back as under one leader, and the line says
// for how long there were none.
func TestCommitsComeBackThoughLeadersFall(t *testing.T) {
	intervals := []time.Duration{0, 7 * time.Second, 5 * time.Second, 4 * time.Second}
	for play, tries := 0, 0; play < len(intervals); tries++ {
		every := intervals[play]
		dir, err := os.MkdirTemp(quick(), "sim")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		bubble.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			w := fiveSharded(t, ctx, dir, *seed+uint64(play)*100_000+uint64(tries)*1_000)
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
			job := func() *replica.Job { return w.raft.now().Jobs[w.job] }
			time.Sleep(20 * time.Second)
			j := job()
			if j == nil || j.Phase != replica.Open || len(j.GroupMirrors[1]) != 1 {
				t.Fatalf("the job does not train with a mirror of group 1: %+v", j)
			}
			i := slices.IndexFunc(w.names, func(n replica.NodeName) bool { // it mirrors something, runs no rank and does not vote
				mirrors := slices.ContainsFunc(slices.Concat(j.Mirrors, j.GroupMirrors), func(names []replica.NodeName) bool { return slices.Contains(names, n) })
				return mirrors && !w.votes(n) && !slices.ContainsFunc(j.Ranks, func(c replica.Claimed) bool { return c.Node == n })
			})
			if i < 0 { // where the mirrors lie is drawn: another one is played
				if tries > 20 {
					t.Fatalf("no such mirror: %v, %v, ranks %v", j.Mirrors, j.GroupMirrors, j.Ranks)
				}
				return
			}
			play++
			w.mu.Lock()
			from := w.trace.Len()
			w.mu.Unlock()
			w.machines[w.names[i]].kill()
			began, committed := time.Now(), job().Position.Step
			back := time.Duration(-1)
			for next := time.Now().Add(every); time.Since(began) < 60*time.Second && back < 0; time.Sleep(100 * time.Millisecond) {
				if every > 0 && time.Now().After(next) {
					w.raft.depose()
					next = time.Now().Add(every)
				}
				if job().Position.Step > committed+3 {
					back = time.Since(began)
				}
			}
			time.Sleep(2 * time.Second)
			w.mu.Lock()
			said := string(w.trace.Bytes()[from:])
			w.mu.Unlock()
			stalled := regexp.MustCompile(`(?m)^ *([0-9ms.]+) .*nothing has been committed for ([0-9ms]+)`).FindAllStringSubmatch(said, -1)
			t.Logf("deposed each %v: step %d was committed, they came back after %v; said %d times", every, committed, back, len(stalled))
			most := timing().DaemonGrace + 15*time.Second
			if every == 4*time.Second { // a leader of two seconds may not live to see a commit of its own: they come back, and it is said
				most = 60 * time.Second
			}
			if back < 0 || back > most {
				t.Errorf("deposed each %v: step %d was committed when the daemon of %s was killed; commits came back after %v, want %v at most", every, committed, w.names[i], back, most)
			}
			for _, m := range stalled {
				at, _ := time.ParseDuration(m[1])
				is, _ := time.ParseDuration(m[2])
				if want := at - began.Sub(w.began); is < want-2*time.Second || is > want+2*time.Second {
					t.Errorf("deposed each %v: %v after the daemon was killed the line says %v", every, want, is)
				}
			}
			if !strings.Contains(said, `"event":"commit_stalled"`) && (back < 0 || back > 16*time.Second) {
				t.Errorf("deposed each %v: no line says that nothing is committed", every)
			}
		})
	}
}

// fiveSharded is sharded of five nodes, so that some mirror neither trains nor votes.
func fiveSharded(t *testing.T, ctx context.Context, dir string, seed uint64) *world {
	for ; ; seed++ {
		w := newWorld(t, ctx, seed, dir)
		if len(w.names) == 5 && w.world == 2 && w.groups[0] != w.groups[1] && w.cadence <= 1 {
			w.pass, w.warm, w.slots, w.takes, w.durable = 300*time.Millisecond, true, 2, 0, 0
			w.net = newNetwork(w.names, w.pace())
			return w
		}
	}
}
