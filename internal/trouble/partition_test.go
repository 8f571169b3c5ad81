//go:build cgo

package trouble_test

import (
	"fmt"
	"testing"

	harness "github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/chaos/netfault"
)

// behind puts the cluster, of which nothing has started, behind a network that can be cut.
func (c *cluster) behind() *netfault.Network {
	c.t.Helper()
	var nodes []netfault.Node
	for _, n := range c.nodes {
		harness.Behind(n.cfg)
		n.write()
		nodes = append(nodes, netfault.Node{Name: n.Name, Addr: n.cfg.Addr, GossipAddr: n.cfg.GossipAddr, Listen: n.cfg.Listen, GossipListen: n.cfg.GossipListen})
	}
	net, err := netfault.New(1, nodes)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := net.Close(); err != nil {
			c.t.Error(err)
		}
	})
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	return net
}

// textlm starts launchers of a job of the example, two replicas of a model, on two nodes, and a spare on the third. Its ranks
// speak to each other beside the daemons, as a collective does.
func (c *cluster) textlm(nodes ...*node) (rank0 *process) {
	c.t.Helper()
	program, err := textlm()
	if err != nil {
		c.t.Fatal(err)
	}
	var launchers []*process
	for i, n := range nodes {
		args := []string{"run", "--config", n.File, "--job", "lm", "--world", "2", "--groups", "0,0", "--durable-every", "0"}
		if i < 2 {
			args = append(args, "--ranks", fmt.Sprint(i))
		} else {
			args = append(args, "--spare", "--capacity", "2")
		}
		launchers = append(launchers, spawn(c.t, n.Name+" launcher", nil, replicad, append(args, "--", program, "--shards", "1", "--steps", "1000000", "--pace", "100ms")...))
	}
	return launchers[0]
}

// leader is the node that leads, and the others.
func (c *cluster) leader() (first *node, others []*node) {
	c.t.Helper()
	name := c.nodes[0].statusWhen(linked).Leader
	for _, n := range c.nodes {
		if n.Name == name {
			first = n
		} else {
			others = append(others, n)
		}
	}
	return first, others
}

// must ends the test for an error of the network.
func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// stepAt is the step that a line is about.
func stepAt(l line) int {
	step, _ := l.fields["step"].(float64)
	return int(step)
}

// state is what a node thinks of another.
func (s status) state(name string) string {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n.State
		}
	}
	return ""
}

// TestPairIsCut: two nodes that can't hear each other are silent to each other and to nobody else; training goes on, and once they
// hear each other again all of it is committed.
func TestPairIsCut(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	network := c.behind()
	third, others := c.leader()
	a, b := others[0], others[1]
	ranks := c.textlm(a, b, third)
	ranks.awaitLine(0, "ten steps", func(l line) bool { return l.is("step", nil) && stepAt(l) >= 10 }) // the ranks have met

	c.must(network.Cut(a.Name, b.Name))
	from := ranks.mark()
	hears := func(who, one, other *node, alive bool) { // not at all: the kernel of a host may answer where its daemon does not
		who.statusWhen(func(s status) bool {
			return (s.state(one.Name) == "alive") == alive && s.state(other.Name) == "alive"
		})
	}
	hears(a, b, third, false)
	hears(b, a, third, false)
	hears(third, a, b, true)
	begun := ranks.awaitFrom(from, "step", nil)
	reached := ranks.awaitLine(from, "30 steps more", func(l line) bool { return l.is("step", nil) && stepAt(l) >= stepAt(begun)+30 })

	network.Heal()
	hears(a, b, third, true)
	for _, n := range others {
		n.daemon.awaitLine(0, "a later commit", func(l line) bool { return l.is("commit_seen", nil) && stepAt(l) >= stepAt(reached) })
	}
}

// TestLeaderIsIsolated: the others elect one of them and go on; the old leader follows it when it is heard again.
func TestLeaderIsIsolated(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	network := c.behind()
	old, others := c.leader()
	first := old.Name
	ranks := c.textlm(others[0], others[1], old)
	ranks.awaitLine(0, "ten steps", func(l line) bool { return l.is("step", nil) && stepAt(l) >= 10 }) // the ranks have met

	c.must(network.Isolate(first))
	for _, n := range others { // on a busy machine one of them may have led before
		n.statusWhen(func(s status) bool { return s.Leader != "" && s.Leader != first })
	}
	old.statusWhen(func(s status) bool { return s.Leader == "" })
	from := ranks.mark()
	reached := ranks.awaitFrom(from, "step", nil)
	for _, n := range others {
		n.daemon.awaitLine(0, "a later commit", func(l line) bool { return l.is("commit_seen", nil) && stepAt(l) > stepAt(reached) })
	}

	from = old.daemon.mark()
	network.Heal()
	old.daemon.awaitFrom(from, "linked", nil)
	if n := network.Counts()[[2]string{first, others[0].Name}]; n.Dropped == 0 || n.Forwarded == 0 {
		t.Errorf("%+v", n)
	}
}

// TestNodeIsLostOrItsDaemonIs: a daemon that is killed is unobserved, for its host refuses; a node that is isolated first is silent.
func TestNodeIsLostOrItsDaemonIs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	network := c.behind()
	one, killed, lost := c.nodes[0], c.nodes[1], c.nodes[2]
	killed.daemon.kill()
	one.statusWhen(func(s status) bool { return s.state("n2") == "unobserved" && s.state("n3") == "alive" })
	c.must(network.Isolate("n3"))
	lost.die()
	one.statusWhen(func(s status) bool { return s.state("n3") == "silent" })
	network.Heal()
	one.statusWhen(func(s status) bool { return s.state("n3") == "unobserved" })
	for _, n := range []*node{killed, lost} {
		n.launch()
		n.daemon.await("linked", nil)
	}
	one.statusWhen(func(s status) bool { return s.state("n2") == "alive" && s.state("n3") == "alive" })
}
