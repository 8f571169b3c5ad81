//go:build !race

package sim

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// loaf is a launcher of a job of its own that offers processes and starts none.
func (w *world) loaf(ctx context.Context, m *machine, job string, ranks uint32) {
	d := m.running()
	pid := w.nextPID()
	p := d.connect(pid, uint64(pid))
	if !d.post(session.RunHello{Peer: p, Header: wire.RankHeader{Type: wire.MRunHello, Request: 1}, RunHello: wire.RunHello{ABI: wire.RankABI, World: ranks, Capacity: ranks, Job: job}}) {
		return
	}
	defer p.hangUp()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.ctx.Done():
			return
		case <-p.in:
		}
	}
}

// since is what was logged from a place in the trace on, of lines that have a text.
func (w *world) since(from int, text string) (lines []string, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(string(w.trace.Bytes()[from:])) {
		if _, said, logged := strings.Cut(line, ": {"); logged {
			bytes += len(said)
			if strings.Contains(line, text) {
				lines = append(lines, line)
			}
		}
	}
	return lines, bytes
}

// TestOneLauncherHoldsNobodyUp: the offers to a launcher of thousands of ranks that starts nothing used to break its node's link again and
// again, each time with a line of the log for each rank.
func TestOneLauncherHoldsNobodyUp(t *testing.T) {
	dir, err := os.MkdirTemp(quick(), "sim")
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
			time.Sleep(time.Second)
			if t.Failed() {
				w.save(t)
			}
		}()
		step := func() replica.Step { return w.raft.now().Jobs[w.job].Position.Step }
		time.Sleep(20 * time.Second)
		before, from := step(), w.trace.Len()
		for _, n := range w.names[:2] {
			go w.loaf(ctx, w.machines[n], "idle-"+string(n), 8000)
		}
		const long = 30 * time.Second
		time.Sleep(long)
		if lines, _ := w.since(from, `"event":"unlinked"`); len(lines) > 0 {
			t.Errorf("%d links are lost, want none:\n%s", len(lines), strings.Join(lines[:min(len(lines), 4)], ""))
		}
		if lines, _ := w.since(from, `"event":"leader"`); len(lines) > 0 {
			t.Errorf("the leader changes:\n%s", strings.Join(lines, ""))
		}
		if _, bytes := w.since(from, ""); bytes > 1<<20*int(long/time.Second)/60 {
			t.Errorf("%d bytes of log in %v, want at most 1 MiB a minute", bytes, long)
		}
		if n := step() - before; n < 100 {
			t.Errorf("%d steps are committed in %v beside it", n, long)
		}
	})
}
