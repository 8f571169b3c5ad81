package consensus

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// stallingLog hangs in writes while it is told to, as a dying disk does.
type stallingLog struct {
	raft.LogStore
	mu   sync.Mutex
	gate chan struct{} // closed: writes pass
	hung chan struct{} // poked by a write that hangs
}

func newStallingLog(l raft.LogStore) *stallingLog {
	open := make(chan struct{})
	close(open)
	return &stallingLog{LogStore: l, gate: open, hung: make(chan struct{}, 1)}
}

// stall makes writes hang until the returned func is called.
func (l *stallingLog) stall() (resume func()) {
	gate := make(chan struct{})
	l.mu.Lock()
	l.gate = gate
	l.mu.Unlock()
	return sync.OnceFunc(func() { close(gate) })
}

func (l *stallingLog) pass() {
	l.mu.Lock()
	gate := l.gate
	l.mu.Unlock()
	select {
	case <-gate:
	default:
		select {
		case l.hung <- struct{}{}:
		default:
		}
		<-gate
	}
}

func (l *stallingLog) StoreLog(e *raft.Log) error    { l.pass(); return l.LogStore.StoreLog(e) }
func (l *stallingLog) StoreLogs(e []*raft.Log) error { l.pass(); return l.LogStore.StoreLogs(e) }

func stallingTrio(t *testing.T, after time.Duration) (*trio, map[replica.NodeName]*stallingLog) {
	c := newTrio(t)
	logs := make(map[replica.NodeName]*stallingLog)
	c.wrap = func(name replica.NodeName, l raft.LogStore) raft.LogStore {
		logs[name] = newStallingLog(l)
		return logs[name]
	}
	c.tune = func(cfg *Config) { cfg.WatchdogAfter = after }
	return c.startAll(true), logs
}

// TestStallingLeaderIsReplaced: its disk hangs for as long as the test likes; another leads meanwhile. When it comes back, the
// old leader follows and has all entries.
func TestStallingLeaderIsReplaced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, logs := stallingTrio(t, 500*time.Millisecond)
		c.propose("w1")
		old := c.leader("")
		resume := logs[old.cfg.ID].stall()
		defer resume()
		done := make(chan error, 1)
		go func() {
			_, _, err := old.Propose(within(t), register("w2"))
			done <- err
		}()
		<-logs[old.cfg.ID].hung
		next := c.leader(old.cfg.ID)
		if next == old {
			t.Fatal("the stalled leader leads")
		}
		if _, _, _, isSelf := old.Leadership(); isSelf {
			t.Error("two leaders")
		}
		if _, _, err := old.Propose(within(t), register("w3")); !errors.Is(err, ErrNotLeader) {
			t.Errorf("the stalled leader answers %v", err)
		}
		if _, out, err := next.Propose(within(t), register("w4")); err != nil || out.Err != nil {
			t.Errorf("the new leader answers %v, %v", err, out.Err)
		}
		resume()
		if err := <-done; !errors.Is(err, ErrUnknown) {
			t.Errorf("the proposal that was caught in the stall: %v", err)
		}
		c.awaitNode("w4")
		c.until("the old leader to speak again", func() bool {
			old.streams.mu.Lock()
			defer old.streams.mu.Unlock()
			return !old.streams.muted
		})
	})
}

// TestFollowerStallIsNoAffair: a follower's slow disk moves no leadership.
func TestFollowerStallIsNoAffair(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, logs := stallingTrio(t, 500*time.Millisecond)
		c.propose("w1")
		lead := c.leader("")
		_, _, before, _ := lead.Leadership()
		var slow replica.NodeName
		for name := range c.nodes {
			if name != lead.cfg.ID {
				slow = name
			}
		}
		resume := logs[slow].stall()
		defer resume()
		c.propose("w2")
		<-logs[slow].hung
		slowNode := c.nodes[slow]
		deadline := time.After(patience)
		for !slowNode.dog.stuck() { // nothing announces it but the report itself, which the node takes
			select {
			case <-time.After(time.Millisecond):
			case <-deadline:
				t.Fatal("the watchdog does not see the stall")
			}
		}
		c.propose("w3")
		resume()
		c.awaitNode("w3")
		if _, _, after, isSelf := lead.Leadership(); after != before || !isSelf {
			t.Errorf("term %d became %d, leading %v", before, after, isSelf)
		}
	})
}

// TestWatchdogTimesWrites: quick writes are no matter, slow ones are reported once and again counted down.
func TestWatchdogTimesWrites(t *testing.T) {
	w := newWatchdog(time.Hour, func() time.Duration { return 0 })
	for range 100 {
		w.write()()
		w.proposal()()
	}
	if w.stuck() || len(w.slow) != 0 || len(w.freed) != 0 {
		t.Error("quick calls are reported")
	}
	w = newWatchdog(time.Nanosecond, func() time.Duration { return 0 })
	done := w.write()
	if what := <-w.slow; what != "a log write" || !w.stuck() {
		t.Errorf("%q is slow, stuck %v", what, w.stuck())
	}
	done()
	if <-w.freed; w.stuck() {
		t.Error("still stuck")
	}
}
