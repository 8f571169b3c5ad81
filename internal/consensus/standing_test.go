package consensus

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// fullLog takes entries while there is room.
type fullLog struct {
	raft.LogStore
	full *atomic.Bool
}

func (l fullLog) StoreLogs(e []*raft.Log) error {
	if l.full.Load() {
		return fmt.Errorf("write raft.db: %w", syscall.ENOSPC)
	}
	return l.LogStore.StoreLogs(e)
}

func (l fullLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// TestStandingOfAFullDisk: a follower that can't write its log says so itself, with the remedy, though Raft's configuration has it as a voter; with room
// it votes again.
func TestStandingOfAFullDisk(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		full := map[replica.NodeName]*atomic.Bool{}
		for _, n := range c.names {
			full[n] = new(atomic.Bool)
		}
		c.wrap = func(name replica.NodeName, l raft.LogStore) raft.LogStore { return fullLog{l, full[name]} }
		c.startAll(true)
		c.propose("a")
		c.awaitNode("a")
		lead := c.leader("")
		var b *Node
		for _, n := range c.nodes {
			if n != lead {
				b = n
			}
			if s := n.Standing(); s.Kind != Voting || s.Why+s.Remedy != "" {
				t.Errorf("%s: %+v", n.ID(), s)
			}
		}
		full[b.ID()].Store(true)
		c.propose("b")
		c.until("its word", func() bool { c.propose("b"); return b.Standing().Kind != Voting })
		if s := b.Standing(); s.Kind != Failed || !strings.Contains(s.String(), b.cfg.Dir+" can't be written: write raft.db: no space left on device: free space in state_dir") {
			t.Errorf("%+v", s)
		}
		full[b.ID()].Store(false)
		c.until("its vote", func() bool { return b.Standing().Kind == Voting })
		c.awaitNode("b")
	})
}

// TestStandings: what a node says of itself when it was added, when its vote was taken away, when its log is damaged.
func TestStandings(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("a")
		names := c.names
		c.names = append(c.names, "n4")
		c.tune = func(cfg *Config) { cfg.Join = cfg.ID == "n4" }
		n4 := c.start("n4", false)
		if s := n4.Standing(); s.Kind != Waiting || !strings.Contains(s.String(), "replicad voter add n4 n4:7000") {
			t.Errorf("%+v", s)
		}
		c.names = names
		lead := c.leader("")
		if err := lead.AddVoter(within(t), Voter{"n4", c.addr("n4")}); err != nil {
			t.Fatal(err)
		}
		if s := n4.Standing(); s.Kind != Voting {
			t.Errorf("%+v", s)
		}
		n4.fsm.halt(fmt.Errorf("%w: on purpose", ErrHalted), "on purpose")
		if s := n4.Standing(); s.Kind != Failed || !strings.Contains(s.Why, "on purpose") {
			t.Errorf("%+v", s)
		}
	})
}
