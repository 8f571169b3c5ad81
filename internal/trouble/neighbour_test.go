//go:build cgo

package trouble_test

import (
	"testing"
	"time"
)

// TestNeighbourTrains: a node gives a job's state to a replacement while a rank of another job trains on it. However little may leave, the
// recovery comes to its end, and the neighbour is neither stopped nor taken for hung.
func TestNeighbourTrains(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	donor, lost, spare := c.nodes[0], c.nodes[1], c.nodes[2]
	donor.cfg.DonorRate = "16MiB" // no more than each transfer's least
	donor.write()
	for _, n := range c.nodes {
		n.start()
	}
	neighbour := donor.run("neighbour", 1, rankSpec{}, "--ranks", "0", "--min-copies", "1")
	spec := rankSpec{Floats: 16 << 20, Pace: 300 * time.Millisecond} // 64 chunks
	flags := []string{"--slots", "2"}
	first := donor.run("job", 2, spec, append(flags, "--ranks", "0")...)
	second := lost.run("job", 2, spec, append(flags, "--ranks", "1")...)
	first.await("step", fields{"step": 3})
	neighbour.await("step", fields{"step": 20})
	spares := spare.run("job", 2, spec, append(flags, "--spare", "--capacity", "1", "--warm", "1")...)
	before := donor.statusWhen(func(s status) bool { return len(s.job("job").Offers) > 0 })
	second.kill()
	lost.die()
	donor.loses("n2")
	healed := func(s status) bool {
		return s.job("job").Phase == "open" && s.job("job").Epoch > before.job("job").Epoch
	}
	during := donor.statusWhen(func(s status) bool { return s.Network.HeldTo > 0 || healed(s) })
	spares.await("loaded", fields{"rank": 1})
	after := donor.statusWhen(healed)
	if n := during.Network; n.HeldTo > 0 && (n.HeldTo != 16<<20 || n.HeldWhy == "") { // 0: nobody asked while it moved
		t.Errorf("held to %g: %q", n.HeldTo, n.HeldWhy)
	}
	if was, is := before.job("neighbour"), after.job("neighbour"); is.Epoch != was.Epoch || is.Phase != "open" {
		t.Errorf("the neighbour is in epoch %d after %d, %s", is.Epoch, was.Epoch, is.Phase)
	}
}
