package netfault

import (
	"container/heap"
	"context"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxQueued = 16384                  // delayed packets of a path: some 20 MB
	resendGap = 200 * time.Millisecond // a stream's lost piece comes so much later: Linux's least retransmission time-out
)

// rule is what happens to packets of a path.
type rule struct {
	cut           bool
	loss          float64
	delay, jitter time.Duration
}

// path is what one node sends another.
type path struct {
	from, to *host
	back     *path
	ports    []*port // one for each service
	rule     atomic.Pointer[rule]
	line     *line

	forwarded, dropped, bytes atomic.Uint64

	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

func newPath(seed uint64, from, to *host) *path {
	h := fnv.New64a()
	h.Write([]byte(from.name + "\x00" + to.name)) // a hash takes everything
	p := &path{from: from, to: to, rng: rand.New(rand.NewPCG(seed, h.Sum64()))}
	p.rule.Store(new(rule))
	p.line = &line{path: p, in: make(chan packet, 256)}
	return p
}

// draw decides about one packet: whether it is lost, and how long it takes.
func (p *path) draw(r *rule) (lost bool, wait time.Duration) {
	if r.loss == 0 && r.jitter == 0 {
		return false, r.delay
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	lost = r.loss > 0 && p.rng.Float64() < r.loss
	wait = r.delay
	if r.jitter > 0 {
		wait += time.Duration(p.rng.Int64N(int64(r.jitter) + 1))
	}
	return lost, wait
}

// pass forwards a datagram by send, now or later, or drops it. data is the caller's again when pass returns.
func (p *path) pass(data []byte, send func([]byte) error) {
	r := p.rule.Load()
	if r.cut {
		p.dropped.Add(1)
		return
	}
	lost, wait := p.draw(r)
	switch {
	case lost:
		p.dropped.Add(1)
	case wait == 0:
		p.deliver(data, send)
	default:
		select {
		case p.line.in <- packet{due: time.Now().Add(wait), data: append([]byte(nil), data...), send: send}:
		default:
			p.dropped.Add(1)
		}
	}
}

func (p *path) deliver(data []byte, send func([]byte) error) {
	if send(data) != nil { // a full buffer or a closed socket
		p.dropped.Add(1)
		return
	}
	p.passed(len(data))
}

func (p *path) passed(bytes int) {
	p.forwarded.Add(1)
	p.bytes.Add(uint64(bytes))
}

// severed tells whether a question to the other node can't be answered.
func (p *path) severed() bool { return p.rule.Load().cut || p.back.rule.Load().cut }

// packet is a datagram under way.
type packet struct {
	due  time.Time
	seq  uint64 // of two that are due together the older one is first
	data []byte
	send func([]byte) error
}

// line is the delayed packets of a path. Its goroutine owns queue and seq.
type line struct {
	path  *path
	in    chan packet
	queue queue
	seq   uint64
}

func (l *line) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for len(l.queue) > 0 && !time.Now().Before(l.queue[0].due) {
			p := heap.Pop(&l.queue).(packet)
			if l.path.rule.Load().cut { // it was under way when the path was cut
				l.path.dropped.Add(1)
				continue
			}
			l.path.deliver(p.data, p.send)
		}
		var due <-chan time.Time
		if len(l.queue) > 0 {
			timer.Reset(time.Until(l.queue[0].due))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
		case p := <-l.in:
			if len(l.queue) >= maxQueued {
				l.path.dropped.Add(1)
				break
			}
			l.seq++
			p.seq = l.seq
			heap.Push(&l.queue, p)
		}
	}
}

// queue is a heap by the time at which packets are due.
type queue []packet

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(packet)) }

func (q queue) Less(i, j int) bool {
	if !q[i].due.Equal(q[j].due) {
		return q[i].due.Before(q[j].due)
	}
	return q[i].seq < q[j].seq
}

func (q *queue) Pop() any {
	old := *q
	p := old[len(old)-1]
	old[len(old)-1] = packet{}
	*q = old[:len(old)-1]
	return p
}
