package recovery

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// putOffAgain is within how long a rank asks again that is put off at the rendezvous.
const putOffAgain = 5 * time.Second

// meets are the answers of the rendezvous that are put off: of a rank, or for want of what a node keeps. They are of the epoch that is not
// closed: a wait that counted on would make each later epoch's first answer a fault.
type meets map[meeting]putOff

type meeting struct {
	rank replica.Rank
	node replica.NodeName // that has not brought what it keeps; empty: the rank's own is in another life
}

type putOff struct{ since, last time.Duration }

func meetClock(e replica.Epoch, m meeting) replica.Clock {
	return replica.Clock{Kind: clockMeeting, Epoch: e, Rank: m.rank, Node: m.node}
}

func (cl *closing) learnPutOff(kn *known, ev PutOff) {
	if kn.job == nil || int(ev.Rank) >= len(kn.job.Ranks) {
		return
	}
	m := meeting{ev.Rank, ev.Missing}
	if ev.Missing != "" {
		m.rank = 0
	}
	p, known := cl.meets[m]
	k := meetClock(kn.job.Epoch, m)
	if known && kn.now-p.last > putOffAgain {
		kn.clocks.End(k)
	}
	p.since = kn.clocks.Since(kn.now, k)
	p.last = kn.now
	cl.meets[m] = p
}

// waitsAtRendezvous are the nodes that keep ranks from each other there. One that has no link is waited for as any such node is.
func (cl *closing) waitsAtRendezvous(kn *known, now time.Duration) (out []waiting) {
	for _, m := range slices.SortedFunc(maps.Keys(cl.meets), func(a, b meeting) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.node, b.node))
	}) {
		p := cl.meets[m]
		c := kn.job.Ranks[m.rank]
		switch {
		case now-p.last > putOffAgain:
		case m.node != "" && kn.up[m.node] && kn.job.Phase != replica.Closed:
			out = append(out, waiting{kind: AwaitBring, node: m.node, since: p.since,
				until: notBefore(kn.began, p.since+kn.bound(AwaitBring), kn.t.Ack)})
		case m.node == "" && !kn.job.Vacant(m.rank) && kn.nodes[c.Node].Incarnation != c.NodeIncarnation && kn.job.Phase != replica.Closed:
			out = append(out, waiting{kind: AwaitMeeting, rank: m.rank, node: c.Node, since: p.since,
				until: notBefore(kn.began, p.since+kn.bound(AwaitMeeting), kn.t.Ack)})
		}
	}
	return out
}

// linkedMeets has a node be waited for anew that can bring what it keeps from now on. To a new leader each node links anew.
func (cl *closing) linkedMeets(kn *known, n replica.NodeName) {
	for m := range cl.meets {
		if m.node == n && kn.came[n] {
			kn.clocks.End(meetClock(kn.job.Epoch, m))
		}
		if m.node == n {
			delete(cl.meets, m)
		}
	}
}

// forgetMeets drops what is not repeated.
func (cl *closing) forgetMeets(kn *known) {
	maps.DeleteFunc(cl.meets, func(m meeting, p putOff) bool {
		if kn.now-p.last > putOffAgain {
			kn.clocks.End(meetClock(kn.job.Epoch, m))
		}
		return kn.now-p.last > putOffAgain
	})
}
