package chaos

import (
	"time"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/chaos/netfault"
	"github.com/replicad/replicad/internal/config"
)

// Network spoils what daemons send each other. Its nodes are named as the cluster's.
type Network interface {
	Cut(a, b string) error
	CutOneWay(from, to string) error
	Isolate(node string) error
	Shape(from, to string, loss float64, delay, jitter time.Duration) error
	HealPair(a, b string) error
	Heal()
	Close() error
}

// behind moves a daemon's own ports away from those that it advertises, which the network takes.
func behind(c *config.Config) netfault.Node {
	cluster.Behind(c)
	return netfault.Node{Name: string(c.Node), Addr: c.Addr, GossipAddr: c.GossipAddr, Listen: c.Listen, GossipListen: c.GossipListen}
}

// silence cuts a node off, as a host that has lost its power is.
func (r *runner) silence(node string) (end func(), err error) {
	return func() {
		for _, other := range nodes {
			if other != node {
				_ = r.network.HealPair(node, other) // both are known
			}
		}
	}, r.network.Isolate(node)
}

// connect starts the network between the nodes.
func (r *runner) connect(behind []netfault.Node) error {
	n, err := netfault.New(r.opt.Seed, behind)
	if err == nil {
		r.network = n
	}
	return err
}
