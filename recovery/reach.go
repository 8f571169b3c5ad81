package recovery

import (
	"maps"
	"time"

	"github.com/replicad/replicad/replica"
)

// pair is two nodes, in the order of their names: what is sent one way is acknowledged the other, so one way is none.
type pair struct{ a, b replica.NodeName }

func pairOf(a, b replica.NodeName) pair { return pair{min(a, b), max(a, b)} }

// cut is a pair of which one could not have parts from the other, though the leader hears both.
type cut struct {
	since time.Duration // first of the failures in a row
	last  time.Duration
	sure  bool
	until time.Duration // forgotten then: nobody tries any more, so nobody would say that it is over
	times int           // found anew
}

// reach is which nodes can't exchange parts with each other. Pairs are learned from transfers that fail, and forgotten after a while, or when
// one of the two registers anew.
type reach map[pair]cut

// failed takes in a try that failed. It is one in a row with the one before if it began soon after that: what the other end lets hang fails only
// every so many seconds.
func (r reach) failed(a, b replica.NodeName, now, took time.Duration) {
	c, known := r[pairOf(a, b)]
	if !known || now-took-c.last > cutBroken {
		c.since = now
	}
	c.last = now
	if now-c.since >= cutAfter {
		if c.sure = true; now >= c.until {
			c.times = min(c.times+1, cutFactor)
		}
		c.until = max(c.until, now+cutKnown<<(c.times-1))
	}
	r[pairOf(a, b)] = c
}

func (r reach) cut(a, b replica.NodeName, now time.Duration) bool {
	c, ok := r[pairOf(a, b)]
	return ok && c.sure && now < c.until
}

// gone forgets failures that are explained by a node that the leader has lost too: it has daemon_grace.
func (r reach) gone(n replica.NodeName) {
	maps.DeleteFunc(r, func(p pair, c cut) bool { return (p.a == n || p.b == n) && !c.sure })
}

// doubts is when each pair that fails will have failed for long enough.
func (r reach) doubts() (at []time.Duration) {
	for _, c := range r {
		if !c.sure {
			at = append(at, c.since+cutAfter)
		}
	}
	return at
}

func (r reach) renewed(n replica.NodeName) {
	maps.DeleteFunc(r, func(p pair, _ cut) bool { return p.a == n || p.b == n })
}
