package leader

import (
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// offering is what one step offers, by node in the order in which they were first named: a message and a line for each, not for each rank.
type offering struct {
	nodes []replica.NodeName
	ranks map[replica.NodeName]*control.Offers
}

func (o *offering) add(e recovery.Offer) {
	if o.ranks == nil {
		o.ranks = map[replica.NodeName]*control.Offers{}
	}
	if o.ranks[e.Node] == nil {
		o.ranks[e.Node] = &control.Offers{}
		o.nodes = append(o.nodes, e.Node)
	}
	o.ranks[e.Node].Add(e.Rank, e.Expect)
}

// offer sends the offers of a step to the nodes that have a link.
func (l *Leader) offer(led *ledJob, o offering) {
	for _, node := range o.nodes {
		n := l.links.of[node]
		if n == nil {
			continue
		}
		offers := *o.ranks[node]
		offers.Job = led.job.ID
		if led.offered == nil {
			led.offered = map[replica.Rank]offered{}
		}
		for r, expect := range offers.In(len(led.job.Ranks)) {
			led.offered[r] = offered{node, expect}
		}
		l.log.Offered(led.job, offers.Ranges[0].First, offers.Len(), node)
		n.Send(offers)
	}
}
