package recovery

import (
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// closing is all that the leader knows and has asked for of one closed epoch alone. Invariant: the next epoch's closing replaces it as a
// whole, so that no field of an earlier recovery can outlive that.
type closing struct {
	epoch    replica.Epoch // that was closed
	capture  capturing
	mirrored replica.Generation // that the nodes were asked to mirror
	durable  []plan.DurableGen
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

// mirror has the generation that the job is to resume at copied while it waits for processes. What was sealed last may lie on its
// node alone, since the fence came before its push; the wait takes as long as a program takes to start, or a node to be replaced,
// and a further fault in it must not cost the step.
func (cl *closing) mirror(ob *outbox, g replica.Generation) {
	if ob.known.job.Phase == replica.Closed && !g.IsZero() && g != cl.mirrored {
		cl.mirrored = g
		ob.send(Mirror{g})
	}
}

// scanRetry is how long after a scan of the durable tier that failed the next one is asked for: what ails a disk or a mount
// takes a person, and each try costs the file system.
const scanRetry = 5 * time.Second

// scan asks for the durable tier's contents, again if no answer came or it could not be read.
func (cl *closing) scan(ob *outbox) {
	if cl.scanned {
		return
	}
	if ob.known.now < cl.scanNext {
		ob.wakeAt(cl.scanNext)
		return
	}
	cl.scanNext = ob.known.now + ob.known.bound(AwaitDisk)
	ob.wakeAt(cl.scanNext)
	ob.send(ScanDurable{})
}

// learnUnreached takes a node's word that it could not bring parts to others, or have them from others.
func (cl *closing) learnUnreached(kn *known, ev Unreached) {
	if kn.job == nil {
		return
	}
	for _, to := range ev.To {
		if _, known := kn.nodes[to]; known && to != ev.From && kn.up[to] {
			kn.reach.failed(ev.From, to, kn.now, ev.Took)
		}
	}
	if p := kn.job.Plan; ev.Fetch && p != nil && kn.job.Phase == replica.Planned && ev.Epoch == p.Epoch &&
		int(ev.Rank) < len(kn.job.Ranks) {
		if src, ok := p.Source(ev.Part); ok && src.Tier != replica.Disk {
			cl.lacking[lack{ev.From, ev.Part}] = ev.Rank
		}
	}
}

// lack is a part of the plan that a node can't get from where the plan says.
type lack struct {
	node replica.NodeName
	part replica.Part
}

// asked is a node that was asked to fetch a part for others.
type asked struct {
	node replica.NodeName
	at   time.Duration
}

// capturing is a capture of the survivors' live state that was asked for.
type capturing struct {
	asked bool
	gen   replica.Generation
	at    time.Duration
}

// loading is how far the planned epoch has come.
type loading struct {
	epoch replica.Epoch
	at    time.Duration // when every rank had loaded
}
