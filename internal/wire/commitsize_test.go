package wire

import (
	"fmt"
	"testing"

	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// TestCommitEntrySize: at 1,024 ranks in groups of two a commit whose parts lie where the last one's lay takes its roots and little
// more; the whole entry takes 112 KB, the short one 25 KB.
func TestCommitEntrySize(t *testing.T) {
	const world = 1024
	j := &replica.Job{ID: replica.JobID{1}}
	c := replica.Commit{Job: j.ID, Position: replica.Position{Epoch: 3, Step: 100000}, Generation: replica.Generation{Epoch: 3, Step: 100000}}
	holder := func(r int) replica.Holder {
		return replica.Holder{Node: replica.NodeName(fmt.Sprintf("node-%04d", r%world)), Incarnation: replica.NodeIncarnation(1<<60 + r%world)}
	}
	add := func(p replica.Part, a, b int) {
		held := []replica.Holder{holder(min(a, b%world)), holder(max(a, b%world))}
		c.Parts = append(c.Parts, replica.PartRoot{Part: p, Root: replica.Digest{byte(p.Kind), byte(a), byte(a >> 8), 7}, Holders: held})
	}
	for g := range world / 2 {
		add(replica.OfGroup(replica.GroupID(g)), g, g+world/2)
	}
	for r := range world {
		add(replica.OfRank(replica.Rank(r)), r, r+1)
	}
	j.Parts = c.Parts
	size := func(c replica.Command) int {
		b, err := EncodeCommand(c)
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
	whole, short := size(c), size(lock.ShortCommit(j, c))
	t.Logf("%d parts: %d bytes whole, %d short", len(c.Parts), whole, short)
	if roots := 16 * len(c.Parts); short > roots+256 || whole < 3*short {
		t.Errorf("%d bytes for %d bytes of roots, %d whole", short, roots, whole)
	}
}
