//go:build cgo

package trouble_test

import (
	"testing"
	"time"
)

// TestReplacementsShareWhatCame: a node with three ranks of a group is lost, and the only donor's memory crosses the network little more
// than once: the replacements, on one node, serve each other what has come.
func TestReplacementsShareWhatCame(t *testing.T) {
	t.Parallel()
	const floats = 8 << 20 // 32 chunks
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	donor, lost, spare := c.nodes[0], c.nodes[1], c.nodes[2]
	spec := rankSpec{Floats: floats, Pace: 400 * time.Millisecond}
	flags := []string{"--slots", "2"}
	first := donor.run("job", 4, spec, append(flags, "--ranks", "0")...)
	others := lost.run("job", 4, spec, append(flags, "--ranks", "1,2,3")...)
	first.await("step", fields{"step": 3})
	spares := spare.run("job", 4, spec, append(flags, "--spare", "--capacity", "3", "--warm", "3")...)
	donor.statusWhen(func(s status) bool { return len(s.job("job").Offers) > 0 })
	others.kill()
	lost.die()
	donor.loses("n2")
	for rank := 1; rank <= 3; rank++ {
		spares.await("loaded", fields{"rank": rank})
	}
	spare.daemon.awaitAll(3, "moved", fields{"part": "group 0"})
	var moved, fromDonor float64
	spare.daemon.saw(func(l line) bool {
		if l.is("moved", fields{"part": "group 0"}) {
			by, _ := l.fields["by"].(map[string]any)
			n, _ := by["n1"].(float64)
			fromDonor += n
			moved++
		}
		return false
	})
	const part = floats * 4
	t.Logf("%v parts of %d MiB: %.0f MiB from the donor", moved, part>>20, fromDonor/(1<<20))
	if moved != 3 || fromDonor < part || fromDonor >= 3*part-part/8 {
		t.Errorf("%v parts were moved, %.0f bytes came from the donor: want 3, little more than once the %d of one", moved, fromDonor, part)
	}
}
