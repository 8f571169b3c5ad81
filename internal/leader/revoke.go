package leader

import (
	"context"
	"fmt"

	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// revokedNodes are the registered nodes of which this leader has seen no certificate that is good.
func (l *Leader) revokedNodes() (names []replica.NodeName) {
	for _, r := range l.view.Revoked {
		if _, registered := l.view.Nodes[replica.NodeName(r.Name)]; registered && r.Role == replica.NodeRole && l.cfg.Newest(r.Role, r.Name) <= r.Epoch {
			names = append(names, replica.NodeName(r.Name))
		}
	}
	return names
}

// turnOut ends the links of nodes that were revoked just now, before anything that is on its way there is taken for a sign of life.
func (l *Leader) turnOut(ctx context.Context, news []replica.Revocation) {
	for _, r := range news {
		name := replica.NodeName(r.Name)
		if n := l.links.of[name]; n != nil && r.Role == replica.NodeRole { // one with a later certificate links again
			n.Close(fmt.Errorf("the certificate of node %s was revoked up to epoch %d", name, r.Epoch))
			delete(l.links.of, name)
			l.lost(ctx, name)
		}
	}
}

// deadByRevocation tells whether a node that is here again counts as dead to some job since its certificate was revoked: nothing but its
// registration ends that.
func deadByRevocation(v lock.View, n replica.Node) bool {
	if _, revoked := v.Revokes(replica.NodeRole, string(n.Name)); !revoked {
		return false
	}
	for _, j := range v.Jobs {
		if j.Phase != replica.Ended && lock.HolderGone(j, n.Holder()) {
			return true
		}
	}
	return false
}
