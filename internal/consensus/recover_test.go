package consensus

import (
	"os"
	"testing"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// TestRecover: of three voters two are lost for good; the third goes on alone with all that it has, in epochs that nobody has had.
func TestRecover(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.startAll(true)
		c.propose("w1")
		job := replica.CreateJob{ID: replica.JobID{9}, Name: "job", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}}
		for _, cmd := range []replica.Command{job, replica.Begin{Job: job.ID, Epoch: 1}} {
			if _, out, err := c.leader("").Propose(within(t), cmd); err != nil || out.Err != nil {
				t.Fatal(err, out.Err)
			}
		}
		c.propose("w2")
		c.awaitNode("w2")
		cfg := c.config("n2")
		_, err := Read(cfg)
		wantError(t, err, nil, "in use by another process", "stop that daemon")
		c.stopAll()

		kept, err := Read(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := kept.State.Nodes["w2"]; !ok || len(kept.Voters) != 3 || kept.Term == 0 || kept.Index < kept.State.Index || kept.State.Jobs[job.ID].Epoch != 1 {
			t.Errorf("kept %+v", kept)
		}
		if again, err := Recover(cfg); err != nil || again.Index != kept.Index || again.State.Era != 1 { // reading it changed nothing
			t.Fatalf("%+v, %v", again, err)
		}
		c.names = []replica.NodeName{"n2"}
		n := c.start("n2", false)
		c.awaitNode("w2")
		c.propose("w3")
		c.same(n, "n2")
		if v := n.State(); v.Era != 2 || v.Jobs[job.ID].Epoch != 1+eraGap-1 || v.Jobs[job.ID].ClosedEpoch != v.Jobs[job.ID].Epoch {
			t.Errorf("era %d, job %+v", v.Era, v.Jobs[job.ID])
		}
		c.tune = func(cfg *Config) { cfg.Join = cfg.ID == "n4" }
		c.start("n4", false)
		if err := n.AddVoter(within(t), Voter{"n4", c.addr("n4")}); err != nil {
			t.Fatal(err)
		}
		c.awaitNode("w3")
	})
}

// TestRecoverOfNothing: a directory without a log, or of another cluster, is left as it is.
func TestRecoverOfNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		cfg := c.config("n1")
		_, err := Recover(cfg)
		wantError(t, err, ErrEmptyLog, cfg.Dir, "another voter")
		if _, err := os.Stat(cfg.Dir); err == nil {
			t.Error("a directory was made")
		}
		c.names = c.names[:1]
		c.start("n1", true)
		c.propose("w1")
		c.stopAll()
		cfg.Cluster = replica.ClusterID{0xc2}
		_, err = Recover(cfg)
		wantError(t, err, ErrForeignDir, "move")
	})
}

// TestRecoverOfDamage: what the checksums refuse is recovered no more than it is started.
func TestRecoverOfDamage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.names = c.names[:1]
		c.start("n1", true)
		index := c.propose("w1")
		c.stopAll()
		cfg := c.config("n1")
		entry(t, cfg.Dir, index, flipTerm)
		_, err := Recover(cfg)
		wantError(t, err, ErrCorrupt, "entry ", "checksum")
		entry(t, cfg.Dir, index, flipTerm)
		c.start("n1", false)
		c.awaitNode("w1")
	})
}
