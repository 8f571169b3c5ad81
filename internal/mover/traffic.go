package mover

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Traffic is what moved between this node and another over one transport since the mover began.
type Traffic struct {
	Peer            replica.NodeName
	Over            transfer.Transport
	Fetched, Pushed uint64  // bytes, verified
	Rate            float64 // bytes a second of the newest exchange of a mebibyte or more, all lanes together; 0: there was none
	Failures        int     // lanes that did not connect, or broke
	Why             string  // of the newest
	WhyAt           time.Time
}

// rated is from how many bytes an exchange says anything about a rate.
const rated = 1 << 20

// traffic is the account of all peers: a few entries for each node that this one has moved parts with.
type traffic struct {
	mu sync.Mutex // guards of
	of map[way]*Traffic
}

type way struct {
	peer replica.NodeName
	over transfer.Transport
}

func (t *traffic) entryLocked(w way) *Traffic {
	if t.of == nil {
		t.of = map[way]*Traffic{}
	}
	if t.of[w] == nil {
		t.of[w] = &Traffic{Peer: w.peer, Over: w.over}
	}
	return t.of[w]
}

func (e *Traffic) failed(err error, now time.Time) {
	if err != nil {
		e.Failures, e.Why, e.WhyAt = e.Failures+1, err.Error(), now
	}
}

// fetched takes in the lanes of a fetch.
func (t *traffic) fetched(lanes []transfer.LaneReport, now time.Time) {
	type sum struct {
		bytes uint64
		took  time.Duration
	}
	sums := map[way]sum{}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range lanes {
		w := way{l.Node, l.Over}
		e := t.entryLocked(w)
		e.failed(l.Err, now)
		e.Fetched += l.Bytes
		sums[w] = sum{sums[w].bytes + l.Bytes, max(sums[w].took, l.Took)}
	}
	for w, s := range sums {
		t.of[w].rate(s.bytes, s.took)
	}
}

// pushed takes in the end of a push.
func (t *traffic) pushed(w way, bytes uint64, took time.Duration, err error, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entryLocked(w)
	e.failed(err, now)
	if err == nil {
		e.Pushed += bytes
		e.rate(bytes, took)
	}
}

func (e *Traffic) rate(bytes uint64, took time.Duration) {
	if bytes >= rated && took > 0 {
		e.Rate = float64(bytes) / took.Seconds()
	}
}

// Traffic is the account by peer and transport. Any goroutine may ask.
func (m *Mover) Traffic() []Traffic {
	m.traffic.mu.Lock()
	defer m.traffic.mu.Unlock()
	var out []Traffic
	for _, w := range slices.SortedFunc(maps.Keys(m.traffic.of), func(a, b way) int {
		return cmp.Or(cmp.Compare(a.peer, b.peer), cmp.Compare(b.over, a.over)) // TCP first
	}) {
		out = append(out, *m.traffic.of[w])
	}
	return out
}
