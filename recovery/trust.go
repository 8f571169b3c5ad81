package recovery

import "github.com/replicad/replicad/replica"

// trust is which bytes and which nodes a leader doubts, and why. A closing leaves it: what could not be loaded, or was sent wrong, is no
// better in the next epoch.
type trust struct {
	known  *known
	outbox *outbox

	lies    lies
	failed  map[replica.Generation]map[replica.Incarnation]bool // who could not load it
	blamed  map[replica.Generation]string                       // to be condemned, and why
	shunned shunned                                             // who does not take which part
	naming  naming                                              // of the regions of a disputed state
}

func newTrust(k *known, ob *outbox) trust {
	return trust{known: k, outbox: ob, lies: newLies(), failed: make(map[replica.Generation]map[replica.Incarnation]bool),
		blamed: make(map[replica.Generation]string)}
}
