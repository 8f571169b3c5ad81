package transfer

import (
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
)

// mix knows what each lane of a fetch has brought, and so whether those over QUIC are of use.
//
// The rule: a lane over QUIC brings the manifest, and leaves the chunks of a large part to those over TCP of its node. It pulls where these
// have all failed, or have brought nothing within headStart: they may never get through (RFC 8305, section 5, between two families). It
// yields again once those that live bring chunks at a better rate than it does, and as long as they bring any. A lane in user space beside one of the kernel's takes more
// processor time from it than it brings: alone they move 0.4 and 1.6 GB/s on two cores, together less than 1.6.
type mix struct {
	mu      sync.Mutex // guards the rest
	lanes   map[*Source]*brought
	coming  map[*Source]bool // lanes over TCP: true while they have neither brought a chunk nor ended
	until   time.Time        // when they are not waited for any more
	changed chan struct{}    // closed and made anew when a lane ends or brings its first chunk
}

// brought is what one lane has.
type brought struct {
	node   replica.NodeName
	over   Transport
	lives  bool
	bytes  uint64
	began  time.Time     // of the present stint
	last   time.Time     // when it brought a chunk, or began
	worked time.Duration // in earlier stints
}

func newMix() *mix {
	return &mix{lanes: make(map[*Source]*brought), coming: make(map[*Source]bool), changed: make(chan struct{})}
}

// expects lanes over TCP that connect from now on.
func (m *mix) expects(list []*Source, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range list {
		if _, before := m.coming[s]; !before { // else it was quicker than the manifest
			m.coming[s] = true
		}
	}
	m.until = now.Add(headStart)
}

// gone says that a lane has ended for good.
func (m *mix) gone(s *Source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.coming[s]
	if m.coming[s] = false; was {
		m.tellLocked()
	}
}

// rate is in bytes a second, until now.
func (b *brought) rate(now time.Time) float64 {
	worked := b.worked
	if b.lives {
		worked += now.Sub(b.began)
	}
	return float64(b.bytes) / max(worked.Seconds(), 1e-6)
}

// begins says that a lane pulls from now on.
func (m *mix) begins(s *Source, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.lanes[s]
	if b == nil {
		b = &brought{node: s.Node, over: s.Over}
		m.lanes[s] = b
	}
	b.lives, b.began, b.last = true, now, now
}

// ends says that a lane does not pull any more.
func (m *mix) ends(s *Source, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.lanes[s]
	b.lives = false
	b.worked += now.Sub(b.began)
	m.tellLocked()
}

// brings counts a chunk.
func (m *mix) brings(s *Source, bytes int, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.lanes[s]
	first := b.bytes == 0
	b.last = now
	if b.bytes += uint64(bytes); first {
		m.coming[s] = false
		m.tellLocked()
	}
}

func (m *mix) tellLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// report is what a lane has brought.
func (m *mix) report(s *Source, err error) LaneReport {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := LaneReport{Node: s.Node, Over: s.Over, Err: err}
	if b := m.lanes[s]; b != nil {
		r.Bytes, r.Took = b.bytes, b.worked
	}
	return r
}

// yields tells whether a lane is to stand back, and when to ask again.
func (m *mix) yields(s *Source, now time.Time) (yes bool, again <-chan time.Time, changed <-chan struct{}) {
	if s.Over != QUIC {
		return false, nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if wait := m.until.Sub(now); wait > 0 {
		for c, coming := range m.coming {
			if coming && c.Node == s.Node {
				return true, time.After(wait), m.changed
			}
		}
	}
	var others float64
	var until time.Duration
	for _, b := range m.lanes {
		if b.node != s.Node || b.over != TCP || !b.lives {
			continue
		}
		if left := b.last.Add(stallAfter).Sub(now); left > 0 { // else it brings a little, and never stalls
			others += b.rate(now)
			until = max(until, left)
		}
	}
	var own float64
	if b := m.lanes[s]; b != nil {
		own = b.rate(now)
	}
	if others == 0 || others < own {
		return false, nil, m.changed
	}
	return true, time.After(until), m.changed
}
