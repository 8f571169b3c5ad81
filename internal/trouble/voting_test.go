//go:build cgo

package trouble_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// votes is what status says of a voter.
func (s status) vote(name replica.NodeName) (votes bool, why string) {
	for _, v := range s.Voters {
		if v.Name == string(name) {
			return v.Votes, v.Why
		}
	}
	return false, "it is not in the list"
}

// TestFullVotersAreNamed: a voter whose state_dir is full is named on each node and at the launcher, with the remedy, and no loss of another is promised to be
// survived. With all disks full nothing is committed, whether there is a leader (whose disk was full after those of the others) or none, and each node
// and the launcher say why. With room all goes on.
func TestFullVotersAreNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	disks := map[replica.NodeName]string{}
	for _, n := range c.nodes {
		disks[n.cfg.Node] = tmpfs(t, "6m")
		n.cfg.StateDir = filepath.Join(disks[n.cfg.Node], "state")
		n.write()
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	lead, others := c.nodes[0], []*node(nil)
	leader := lead.statusWhen(func(s status) bool { return s.Leader != "" && len(s.Voters) == 3 }).Leader
	for _, n := range c.nodes {
		if string(n.cfg.Node) == leader {
			lead = n
		} else {
			others = append(others, n)
		}
	}
	l := lead.run("job", 1, rankSpec{Floats: 100}, "--min-copies", "1")
	l.await("step", fields{"step": 5})
	lead.statusWhen(func(s status) bool {
		for _, v := range s.Voters {
			if !v.Votes {
				return false
			}
		}
		return len(s.Voters) == 3
	})
	b := others[0]
	full(t, disks[b.cfg.Node])
	for _, n := range c.nodes {
		s := n.statusWhen(func(s status) bool {
			full(t, disks[b.cfg.Node]) // a snapshot that is superseded makes room again
			votes, _ := s.vote(b.cfg.Node)
			return linked(s) && len(s.Voters) == 3 && !votes
		})
		if _, why := s.vote(b.cfg.Node); !strings.Contains(why, "free space in state_dir") {
			t.Errorf("%s says of %s: %q", n.cfg.Node, b.cfg.Node, why)
		}
	}
	code, out := lead.verb("status")
	if code != 0 {
		t.Errorf("code %d", code)
	}
	contains(t, out, "voter "+string(b.cfg.Node), "does not vote", "free space in state_dir", "2 of the 3 voters vote: the loss of one of them stops commits", "voter, does not vote")
	if _, out = lead.verb("voter", "list"); !strings.Contains(out, "does not vote") {
		t.Error(out)
	}
	l.awaitText(0, "2 of the 3 voters vote, and the loss of one of them stops commits")

	from := l.mark()
	for _, n := range c.nodes {
		s := n.statusWhen(func(s status) bool {
			for _, disk := range disks {
				full(t, disk)
			}
			votes, why := s.vote(n.cfg.Node)
			return !votes && strings.Contains(why, "free space in state_dir")
		})
		if len(s.Voters) != 3 {
			t.Errorf("%s: %+v", n.cfg.Node, s.Voters)
		}
	}
	l.awaitLine(from, "nothing is committed", func(l line) bool {
		return strings.Contains(l.text, "nothing is committed") && strings.Contains(l.text, "free space in state_dir")
	})
	for _, disk := range disks {
		remove(t, filepath.Join(disk, "ballast"))
	}
	lead.statusWhen(func(s status) bool {
		for _, v := range s.Voters {
			if !v.Votes {
				return false
			}
		}
		return s.Leader != "" && len(s.Voters) == 3
	})
	lead.daemon.awaitFrom(lead.daemon.mark(), "commit_seen", nil)
}

// TestAVoterThatLostItsLogIsNamed: on each node, as long as it does not vote.
func TestAVoterThatLostItsLogIsNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	lost := c.nodes[2]
	lost.die()
	c.nodes[0].statusWhen(func(s status) bool { votes, why := s.vote("n3"); return s.Leader != "" && !votes && why != "" })
	if err := os.RemoveAll(filepath.Join(lost.cfg.StateDir, "raft")); err != nil {
		t.Fatal(err)
	}
	lost.launch()
	for _, n := range c.nodes {
		s := n.statusWhen(func(s status) bool {
			votes, why := s.vote("n3")
			taken := slices.ContainsFunc(s.Voters, func(v voterRow) bool { return v.Joining }) // it has its log again, and its vote in a moment
			return s.Leader != "" && !taken && (votes || strings.Contains(why, "log"))
		})
		for _, is := range s.Nodes {
			if is.Name == "n3" && !is.Voter {
				t.Errorf("%s: it has a vote: %+v", n.cfg.Node, s)
			}
		}
	}
}

// TestAnOldKeeperIsNamed: state_dir was emptied under a keeper that holds a rank's memory. The next daemon has a keeper of its own, and names the old one.
func TestAnOldKeeperIsNamed(t *testing.T) {
	t.Parallel()
	n := one(t)
	n.run("job", 1, rankSpec{Floats: 100}).await("step", fields{"step": 5})
	old := n.keeper
	n.daemon.kill()
	if err := os.RemoveAll(n.cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	n.keep()
	n.keeperAnswers()
	n.serve()
	n.daemon.await("daemon_ready", nil)
	s := n.statusWhen(func(s status) bool { return len(s.FormerKeepers) > 0 })
	contains(t, s.FormerKeepers[0], fmt.Sprintf("process %d is the keeper of a former life", old.PID()), "MiB in", fmt.Sprintf("kill %d", old.PID()))
	n.daemon.await("failed", fields{"what": "keeper", "why": "state_dir was emptied"})
	_, out := n.verb("status")
	contains(t, out, "old keeper", "kill ")
}
