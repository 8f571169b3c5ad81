//go:build cgo

package trouble_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/replica"
)

// links are two networks between the nodes of a cluster, each node in a network namespace of its own with an interface in both.
type links struct {
	t  testing.TB
	id string
}

const networks = 2

// apart puts the cluster's nodes, of which nothing has started, behind two interfaces each, and starts them.
func (c *cluster) apart() *links {
	c.t.Helper()
	if os.Geteuid() != 0 {
		c.t.Skip("only root can make network namespaces")
	}
	l := &links{c.t, fmt.Sprintf("rp%d-%x", os.Getpid(), rand.Uint32())}
	hub := l.space("hub")
	l.ip("-n", hub, "link", "set", "lo", "up")
	for k := range networks {
		l.ip("-n", hub, "link", "add", fmt.Sprintf("net%d", k), "type", "bridge")
		l.ip("-n", hub, "link", "set", fmt.Sprintf("net%d", k), "up")
	}
	voters, seeds := []config.Voter{}, []string{}
	for i, n := range c.nodes {
		space := l.space(n.Name)
		l.ip("-n", space, "link", "set", "lo", "up")
		for k := range networks {
			port, face := plug(n, k), fmt.Sprintf("link%d", k)
			l.ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", face, "netns", space)
			l.ip("-n", hub, "link", "set", port, "master", fmt.Sprintf("net%d", k), "up")
			l.ip("-n", space, "addr", "add", fmt.Sprintf("10.77.%d.%d/24", k, i+1), "dev", face)
			l.ip("-n", space, "link", "set", face, "up")
		}
		n.Within = []string{"ip", "netns", "exec", space}
		n.cfg.Addr, n.cfg.GossipAddr = fmt.Sprintf("10.77.0.%d:7400", i+1), fmt.Sprintf("10.77.0.%d:7401", i+1)
		n.cfg.Addrs = []string{"10.77.0.0/16"}
		voters = append(voters, config.Voter{Name: replica.NodeName(n.Name), Addr: n.cfg.Addr})
		seeds = append(seeds, n.cfg.GossipAddr)
	}
	for _, n := range c.nodes {
		n.cfg.Voters, n.cfg.Seeds = voters, seeds
		n.write()
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	return l
}

// space makes a network namespace, until the end of the test.
func (l *links) space(name string) string {
	l.t.Helper()
	space := l.id + "-" + name
	if out, err := exec.Command("ip", "netns", "add", space).CombinedOutput(); err != nil {
		l.t.Skipf("no network namespace: %v: %s", err, out)
	}
	l.t.Cleanup(func() { l.ip("netns", "del", space) })
	return space
}

// plug is where a node's interface in a network ends at the hub.
func plug(n *node, k int) string { return fmt.Sprintf("%s-%d", n.Name, k) }

func (l *links) ip(args ...string) {
	l.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		l.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// carrier takes the far end of a node's interface down, or up again: the node keeps the interface, its address and its routes.
func (l *links) carrier(n *node, k int, to string) {
	l.t.Helper()
	l.ip("-n", l.id+"-hub", "link", "set", plug(n, k), to)
}

// face takes a node's own interface down, or up again: the node has no route by it meanwhile.
func (l *links) face(n *node, k int, to string) {
	l.t.Helper()
	l.ip("-n", l.id+"-"+n.Name, "link", "set", fmt.Sprintf("link%d", k), to)
}

// path is what a node says of an address of another.
func (s status) path(addr string) (found statusPath) {
	for _, p := range s.Network.Paths {
		if p.Addr == addr {
			return p
		}
	}
	return found
}

// TestAnInterfaceDies: a node with two interfaces loses the one that all configurations name, first a node that follows and then the leader,
// once by its carrier and once by itself. The other nodes see it alive, its ranks train on in the epoch and the processes that they had, what they
// train is committed, and their parts go over the interface that is left.
func TestAnInterfaceDies(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	net := c.apart()
	leader, others := c.leader()
	follower, third := others[0], others[1]
	for i, n := range []*node{follower, leader} {
		n.run("job", 2, rankSpec{Floats: severalChunks, Pace: 60 * time.Millisecond}, "--groups", "0,1", "--ranks", fmt.Sprint(i))
	}
	first := third.statusWhen(func(s status) bool { return s.job("job").Position.Step >= 10 }).job("job")

	for _, loss := range []struct {
		of  *node
		set func(n *node, k int, to string)
	}{{follower, net.carrier}, {leader, net.face}} {
		lost := loss.of
		at := slices.Index(c.nodes, lost) + 1
		dead, lives := fmt.Sprintf("10.77.0.%d:7400", at), fmt.Sprintf("10.77.1.%d:7400", at)
		witnesses := slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return n == lost })
		step := third.statusWhen(linked).job("job").Position.Step
		loss.set(lost, 0, "down")
		began := time.Now()
		for _, n := range witnesses {
			n.statusWhen(func(s status) bool { return s.path(dead).State == "silent" && s.path(lives).State == "alive" })
		}
		third.statusWhen(func(s status) bool { return s.job("job").Position.Step > step+3 })
		t.Logf("%s lost an interface: commits went on after %v", lost.Name, time.Since(began))
		before := third.statusWhen(linked).job("job").Position.Step
		sent := lost.status().sentBy(1)
		third.statusWhen(func(s status) bool { return s.job("job").Position.Step >= before+50 }) // 3 s: three times as long as silence takes to count
		for _, n := range witnesses {                                                            // a machine without time may keep a probe waiting; what silence would have led to is looked at below
			n.statusWhen(func(s status) bool { return s.state(lost.Name) == "alive" })
		}
		lost.statusWhen(func(s status) bool { return s.sentBy(1) >= sent+(16<<20) })

		loss.set(lost, 0, "up")
		for _, n := range witnesses {
			n.statusWhen(func(s status) bool { return s.path(dead).State == "alive" })
		}
	}

	last := third.statusWhen(linked).job("job")
	if last.Epoch != first.Epoch || last.Phase != first.Phase || last.Degraded {
		t.Errorf("epoch %d in phase %s, degraded: %v; it was epoch %d in phase %s", last.Epoch, last.Phase, last.Degraded, first.Epoch, first.Phase)
	}
	for i, r := range last.Ranks {
		if was := first.Ranks[i]; r.PID != was.PID || r.Incarnation != was.Incarnation {
			t.Errorf("rank %d is process %d, incarnation %d; it was process %d, incarnation %d", r.Rank, r.PID, r.Incarnation, was.PID, was.Incarnation)
		}
	}
	if len(last.Quarantined) > 0 {
		t.Errorf("quarantined: %v", last.Quarantined)
	}
}

// sentBy is how many bytes of parts a node has sent to addresses in a network.
func (s status) sentBy(k int) (sum uint64) {
	for _, p := range s.Network.Paths {
		if strings.HasPrefix(p.Addr, fmt.Sprintf("10.77.%d.", k)) {
			sum += p.Sent
		}
	}
	return sum
}
