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

func (l *Leader) learnPutOff(ev PutOff) {
	if l.known.job == nil || int(ev.Rank) >= len(l.known.job.Ranks) {
		return
	}
	m := meeting{ev.Rank, ev.Missing}
	if ev.Missing != "" {
		m.rank = 0
	}
	p, known := l.closing.meets[m]
	k := meetClock(l.known.job.Epoch, m)
	if known && l.known.now-p.last > putOffAgain {
		l.known.clocks.End(k)
	}
	p.since = l.known.clocks.Since(l.known.now, k)
	p.last = l.known.now
	l.closing.meets[m] = p
}

// waitsAtRendezvous are the nodes that keep ranks from each other there. One that has no link is waited for as any such node is.
func (l *Leader) waitsAtRendezvous(now time.Duration) (out []waiting) {
	for _, m := range slices.SortedFunc(maps.Keys(l.closing.meets), func(a, b meeting) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.node, b.node))
	}) {
		p := l.closing.meets[m]
		c := l.known.job.Ranks[m.rank]
		switch {
		case now-p.last > putOffAgain:
		case m.node != "" && l.known.up[m.node] && l.known.job.Phase != replica.Closed:
			out = append(out, waiting{kind: AwaitBring, node: m.node, since: p.since, until: notBefore(l.known.began, p.since+l.known.bound(AwaitBring), l.known.t.Ack)})
		case m.node == "" && !l.known.job.vacant(m.rank) && l.known.nodes[c.Node].Incarnation != c.NodeIncarnation && l.known.job.Phase != replica.Closed:
			out = append(out, waiting{kind: AwaitMeeting, rank: m.rank, node: c.Node, since: p.since, until: notBefore(l.known.began, p.since+l.known.bound(AwaitMeeting), l.known.t.Ack)})
		}
	}
	return out
}

// linkedMeets has a node be waited for anew that can bring what it keeps from now on. To a new leader each node links anew.
func (l *Leader) linkedMeets(n replica.NodeName) {
	for m := range l.closing.meets {
		if m.node == n && l.known.came[n] {
			l.known.clocks.End(meetClock(l.known.job.Epoch, m))
		}
		if m.node == n {
			delete(l.closing.meets, m)
		}
	}
}

// forgetMeets drops what is not repeated.
func (l *Leader) forgetMeets() {
	maps.DeleteFunc(l.closing.meets, func(m meeting, p putOff) bool {
		if l.known.now-p.last > putOffAgain {
			l.known.clocks.End(meetClock(l.known.job.Epoch, m))
		}
		return l.known.now-p.last > putOffAgain
	})
}
