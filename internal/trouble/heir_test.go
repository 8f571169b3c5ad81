//go:build cgo

package trouble_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestHeirSealsNothing: a rank dies between two steps, at one that no slot holds. Its next process has the arena and waits in rp_join while
// the other rank has not come to rest yet. What it finds there are whole, good words of that step: it must not be taken for a producer
// of it (docs/heir.md). The lowest rank's root counts in this group, so what it sealed would be loaded by both.
func TestHeirSealsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	rest := filepath.Join(c.Dir, "rest")
	flags := []string{"--cadence", "10", "--nondeterministic", "0"}
	first := c.nodes[0].run("job", 2, rankSpec{Pace: 50_000_000}, append([]string{"--ranks", "0"}, flags...)...)
	second := c.nodes[1].run("job", 2, rankSpec{Pace: 50_000_000, Late: rest}, append([]string{"--ranks", "1"}, flags...)...)
	at := first.await("step", fields{"step": 23, "rank": 0})
	pid, was := int(at.fields["pid"].(float64)), c.nodes[0].statusWhen(linked).job("job").Ranks[0].Incarnation
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.nodes[0].statusWhen(func(s status) bool {
		j := s.job("job")
		return linked(s) && len(j.Ranks) == 2 && j.Ranks[0].Incarnation > was && j.Ranks[0].State == "stopped"
	})
	if err := os.WriteFile(rest, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for rank, l := range []*process{first, second} { // each rank compares what it loads with the step that it is of
		l.await("loaded", fields{"rank": rank, "epoch": 2})
		l.await("step", fields{"rank": rank, "epoch": 2})
	}
	loadedOnlyGood(t, []*process{first, second})
}
