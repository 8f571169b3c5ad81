package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// RecoverVoter makes this node, whose daemon does not run, the only voter of its cluster, once acceptLoss is given; without it nothing
// is changed. The text says what is kept, and what nobody can tell from one log.
func RecoverVoter(c *config.Config, acceptLoss bool) (text string, err error) {
	id, err := Identity(c)
	if err != nil {
		return "", err
	}
	want := stateMark{Magic: "replicad-node", Version: 1, Cluster: id.Cluster, Node: c.Node}
	if marked, err := checkMark(c.StateDir, want); err != nil {
		return "", err
	} else if !marked {
		return "", fmt.Errorf("state_dir %s: no daemon of this node has run there: give the configuration of a voter that is left", c.StateDir)
	}
	cfg := consensus.Config{ID: c.Node, Addr: c.Addr, Dir: filepath.Join(c.StateDir, "raft"), Cluster: id.Cluster, Heartbeat: c.Raft.Heartbeat, Election: c.Raft.Election, Lease: c.Raft.Lease}
	do := consensus.Read
	if acceptLoss {
		do = consensus.Recover
	}
	kept, err := do(cfg)
	if err != nil {
		return "", err
	}
	text = keptText(c.Node, cfg.Dir, kept)
	if !acceptLoss {
		return text, errors.New("nothing was changed: with --accept-loss this node becomes the only voter, with what is listed here")
	}
	return text + fmt.Sprintf("\n%s is the only voter now, in era %d, and every job that has not ended goes on from a new epoch. Next:\n"+
		"  1. name it alone in the voters of every node's configuration\n"+
		"  2. start its daemon, without --bootstrap and without --join; then restart the other daemons (ranks and their memory stay)\n"+
		"  3. add further voters, under new names: daemon --join there, replicad voter add here\n", c.Node, kept.State.Era+1), nil
}

// keptText says what a voter's log holds and what it can't prove.
func keptText(n replica.NodeName, dir string, k consensus.Kept) string {
	var b strings.Builder
	fmt.Fprintf(&b, "the log of voter %s in %s:\n  last entry %d, of term %d; era %d\n  voters:", n, dir, k.Index, k.Term, k.State.Era)
	for _, v := range k.Voters {
		fmt.Fprintf(&b, " %s at %s;", v.Name, v.Addr)
	}
	fmt.Fprintf(&b, "\n  %d nodes, %d jobs", len(k.State.Nodes), len(k.State.Jobs))
	for _, j := range byName(k.State) {
		fmt.Fprintf(&b, "\n  job %s (%v): %v, epoch %d, committed step %d", j.Name, j.ID, j.Phase, j.Epoch, j.Position.Step)
	}
	b.WriteString("\nwhat this log can't prove:\n" +
		"  - that no other voter has newer entries: run this on every voter that is left, and recover, once, the one with the highest term,\n" +
		"    of equal terms the one with the highest entry. Commits, new jobs and ended jobs that only another log knows are lost.\n" +
		"  - that its last entries were committed: they count as committed from now on.\n" +
		"  - that the other voters are gone: one that is started again with its old Raft directory may lead the old cluster beside this one.\n" +
		"    Move state_dir/raft away on each of them before anything is started.\n")
	return b.String()
}

func byName(v lock.View) []*replica.Job {
	return slices.SortedFunc(maps.Values(v.Jobs), func(a, b *replica.Job) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), strings.Compare(string(a.ID[:]), string(b.ID[:])))
	})
}
