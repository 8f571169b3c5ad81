package consensus

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// wantError fails unless err is of that kind and says each of the texts.
func wantError(t *testing.T, err, kind error, texts ...string) {
	t.Helper()
	if err == nil || kind != nil && !errors.Is(err, kind) {
		t.Fatalf("got %v, want %v", err, kind)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q lacks %q", err, s)
		}
	}
}

func TestCommit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		first := c.propose("w1")
		second := c.propose("w2")
		if second <= first {
			t.Errorf("indexes %d, %d", first, second)
		}
		c.awaitNode("w2")
		lead := c.leader("")
		for name, n := range c.nodes {
			leader, addr, term, isSelf := n.Leadership()
			if leader != lead.cfg.ID || addr != lead.cfg.Addr || term == 0 || isSelf != (n == lead) {
				t.Errorf("%s says: leader %q at %q, term %d, isSelf %v", name, leader, addr, term, isSelf)
			}
			if n == lead {
				continue
			}
			_, _, err := n.Propose(within(t), register("w3"))
			var not *NotLeader
			if !errors.Is(err, ErrNotLeader) || !errors.As(err, &not) || not.Leader != lead.cfg.ID || not.Addr != lead.cfg.Addr {
				t.Errorf("%s, a follower, answers %v", name, err)
			}
		}
	})
}

// TestRefusalIsAnOutcome: the state machine's refusal is not an error of the log.
func TestRefusalIsAnOutcome(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		_, out, err := c.leader("").Propose(within(t), replica.Begin{Job: replica.JobID{1}, Epoch: 1})
		if err != nil || out.Err == nil || out.Changed {
			t.Errorf("Begin of a job that does not exist: %+v, %v", out, err)
		}
	})
}

func TestLeaderLossAndRestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		old := c.leader("").cfg.ID
		_, _, before, _ := c.nodes[old].Leadership()
		c.stop(old)
		next := c.leader(old)
		if _, _, term, _ := next.Leadership(); term <= before {
			t.Errorf("the new leader's term is %d, the old one's was %d", term, before)
		}
		if _, ok := next.State().Nodes["w1"]; !ok {
			t.Error("a ready leader has not applied what the old one committed")
		}
		c.propose("w2")
		c.start(old, false)
		c.awaitNode("w2")

		c.stopAll() // and all from disk
		c.startAll(false)
		c.leader("")
		c.awaitNode("w2")
		c.propose("w3")
		c.awaitNode("w3")
	})
}

func TestTransfer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		old := c.leader("")
		if err := old.Transfer(); err != nil {
			t.Fatal(err)
		}
		next := c.leader(old.cfg.ID)
		if next == old {
			t.Error("the leader is the same")
		}
		c.propose("w2")
		if err := next.TransferTo("n9"); err == nil {
			t.Error("leadership went to a node that does not vote")
		}
		if err := next.TransferTo(old.cfg.ID); err != nil {
			t.Fatal(err)
		}
		if c.leader(next.cfg.ID) != old {
			t.Error("another one leads than was asked for")
		}
		c.propose("w3")
	})
}

// TestSnapshotAndRestore: a voter that missed more than the log keeps gets the state whole, and so does one that restarts.
func TestSnapshotAndRestore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		behind := replica.NodeName("n3")
		if c.leader("").cfg.ID == behind {
			behind = "n1"
		}
		c.stop(behind)
		c.propose("w2")
		for name, n := range c.nodes {
			if err := n.raft.ReloadConfig(raft.ReloadableConfig{TrailingLogs: 1, SnapshotInterval: time.Hour, SnapshotThreshold: snapshotThreshold,
				HeartbeatTimeout: n.cfg.Heartbeat, ElectionTimeout: n.cfg.Election}); err != nil {
				t.Fatal(err)
			}
			c.awaitNode("w2")
			if err := n.raft.Snapshot().Error(); err != nil {
				t.Fatalf("snapshot on %s: %v", name, err)
			}
		}
		c.propose("w3")
		c.start(behind, false)
		c.awaitNode("w3")
		got, want := c.nodes[behind].State(), c.leader("").State()
		for name, w := range want.Nodes {
			if g := got.Nodes[name]; g.Incarnation != w.Incarnation || g.Addr != w.Addr || g.Labels["rack"] != w.Labels["rack"] {
				t.Errorf("node %s restored as %+v, want %+v", name, g, w)
			}
		}
		c.stop(behind)
		c.start(behind, false)
		c.awaitNode("w3")
	})
}

// TestJoin: a voter is replaced by another node.
func TestJoin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		lost := replica.NodeName("n3")
		if c.leader("").cfg.ID == lost {
			lost = "n2"
		}
		c.stop(lost)
		ctx := within(t)
		if err := c.leader("").RemoveVoter(ctx, lost); err != nil {
			t.Fatal(err)
		}
		c.tune = func(cfg *Config) { cfg.Join = cfg.ID == "n4" }
		c.start("n4", false)
		c.byLeader(func(n *Node) error { return n.AddVoter(ctx, Voter{"n4", c.addr("n4")}) })
		c.propose("w2")
		c.awaitNode("w2")
		if leader, addr, _, _ := c.nodes["n4"].Leadership(); addr != c.addr(leader) {
			t.Errorf("the new voter takes %q at %q for the leader", leader, addr)
		}
	})
}

func TestForeignDirIsRefused(t *testing.T) {
	c := newTrio(t).startAll(true)
	c.stopAll()
	for name, change := range map[string]func(*Config){
		"other cluster": func(cfg *Config) { cfg.Cluster = replica.ClusterID{0xc2} },
		"other node":    func(cfg *Config) { cfg.Dir = c.config("n2").Dir },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := c.config("n1")
			change(&cfg)
			cfg.Layer = c.layer("n1")
			_, err := Start(cfg)
			wantError(t, err, ErrForeignDir, cfg.Dir, cfg.Cluster.String(), testCluster.String(), "move")
		})
	}
}

func TestDamagedDirIsRefused(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"log is garbage": func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, logFile), []byte(strings.Repeat("no database ", 4096)))
		},
		"log is cut": func(t *testing.T, dir string) {
			st, err := os.Stat(filepath.Join(dir, logFile))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(filepath.Join(dir, logFile), st.Size()/2); err != nil {
				t.Fatal(err)
			}
		},
		"log is empty of pages": func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, logFile), 100); err != nil {
				t.Fatal(err)
			}
		},
		"owner is garbage": func(t *testing.T, dir string) { write(t, filepath.Join(dir, ownerFile), []byte("{}")) },
		"owner is gone": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, ownerFile)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTrio(t).startAll(true)
			c.propose("w1")
			c.stopAll()
			cfg := c.config("n1")
			damage(t, cfg.Dir)
			cfg.Layer = c.layer("n1")
			n, err := Start(cfg)
			if err == nil {
				n.Close()
			}
			wantError(t, err, ErrCorrupt, cfg.Dir, "move the directory away")
		})
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUnusableDir(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		file := filepath.Join(t.TempDir(), "file")
		write(t, file, nil)
		cfg := c.config("n1")
		cfg.Dir, cfg.Bootstrap, cfg.Layer = filepath.Join(file, "raft"), true, c.layer("n1")
		_, err := Start(cfg)
		wantError(t, err, nil, cfg.Dir, "writable", "configure another")

		c.start("n2", true)
		cfg = c.config("n2")
		cfg.Layer = c.layer("n2")
		_, err = Start(cfg)
		wantError(t, err, nil, cfg.Dir, "in use by another process")
	})
}

func TestConfigFaultsAreJoined(t *testing.T) {
	_, err := Start(Config{ID: "A", Bootstrap: true, Voters: []Voter{{"x", "1"}, {"x", "2"}}, Heartbeat: time.Second, Election: time.Second, Lease: time.Minute})
	wantError(t, err, nil, `"A"`, "Dir", "Cluster is zero", "unique", "not one of Voters", "WatchdogAfter", "LeaderLeaseTimeout")
}

// TestProposeEndsWithItsContext: without a quorum nothing commits, and the caller is not kept.
func TestProposeEndsWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.tune = func(cfg *Config) { // the leader must not notice the loss before the proposal is in
			cfg.Heartbeat, cfg.Election, cfg.Lease = 2*time.Second, 2*time.Second, 2*time.Second
		}
		c.startAll(true)
		c.propose("w1")
		lead := c.leader("")
		for _, name := range c.names {
			if name != lead.cfg.ID {
				c.stop(name)
			}
		}
		ctx, cancel := context.WithTimeout(within(t), 300*time.Millisecond)
		defer cancel()
		_, _, err := lead.Propose(ctx, register("w2"))
		wantError(t, err, ErrUnknown)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the cause is lost: %v", err)
		}
		c.until("the leader to step down", func() bool { _, _, _, isSelf := lead.Leadership(); return !isSelf })
		_, _, err = lead.Propose(within(t), register("w3"))
		wantError(t, err, ErrNotLeader, "none is known")
	})
}

// TestLostLeadershipIsUnknown: a proposal under way when its leader loses the quorum.
func TestLostLeadershipIsUnknown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		lead := c.leader("")
		for _, name := range c.names {
			if name != lead.cfg.ID {
				c.stop(name)
			}
		}
		// It steps down within its lease; a proposal before that is lost with it, one after it was never made.
		_, _, err := lead.Propose(within(t), register("w2"))
		if !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrNotLeader) {
			t.Errorf("got %v", err)
		}
	})
}

func TestClosedNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		lead := c.leader("")
		c.stop(lead.cfg.ID)
		if err := lead.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if _, _, err := lead.Propose(within(t), register("w1")); err == nil {
			t.Error("a closed node takes proposals")
		}
	})
}

// TestUnreadableEntryHalts: an entry of a newer program must not be skipped.
func TestUnreadableEntryHalts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		lead := c.leader("")
		if err := lead.raft.Apply([]byte("from the future"), patience).Error(); err != nil {
			t.Fatal(err)
		}
		c.until("all voters to halt", func() bool {
			for _, n := range c.nodes {
				if n.Err() == nil {
					return false
				}
			}
			return true
		})
		for name, n := range c.nodes {
			wantError(t, n.Err(), ErrHalted, "entry", "program version")
			if _, _, _, isSelf := n.Leadership(); isSelf {
				t.Errorf("%s leads with a state that stands still", name)
			}
			if _, _, err := n.Propose(within(t), register("w2")); !errors.Is(err, ErrHalted) {
				t.Errorf("%s answers %v", name, err)
			}
			wantError(t, n.raft.Snapshot().Error(), nil, ErrHalted.Error()) // it would hide the entry
		}
	})
}
