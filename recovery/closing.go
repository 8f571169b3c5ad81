package recovery

import (
	"time"

	"github.com/replicad/replicad/replica"
)

// closing is all that the leader knows and has asked for of one closed epoch alone. Invariant: the next epoch's closing replaces it as a whole,
// so that no field of an earlier recovery can outlive that.
type closing struct {
	epoch    replica.Epoch // that was closed
	capture  capturing
	mirrored replica.Generation // that the nodes were asked to mirror
	durable  []DurableGen
	scanned  bool
	unread   string        // why the durable tier could not be searched, the last time
	scanNext time.Duration // not before it is asked for again
	loaded   loading
	lacking  map[lack]replica.Rank // parts of the plan that a node can't get, and for which rank
	asked    map[lack]asked        // who fetches them
	meets    meets
}

// newClosing knows nothing yet of the recovery from an epoch.
func newClosing(e replica.Epoch) closing {
	return closing{epoch: e, lacking: make(map[lack]replica.Rank), asked: make(map[lack]asked), meets: make(meets)}
}
