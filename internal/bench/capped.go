package bench

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/replicad/replicad/transfer"
)

// pacer lets so many bytes a second pass.
type pacer struct {
	rate float64 // bytes a second

	mu   sync.Mutex // guards next
	next time.Time  // when the link is free again
}

// pass waits until n bytes have passed; bytes of several goroutines pass one after another.
func (p *pacer) pass(n int) {
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	until := p.next
	p.mu.Unlock()
	time.Sleep(time.Until(until))
}

// cappedConn is a connection on a slow link.
type cappedConn struct {
	net.Conn
	link *pacer
}

func (c cappedConn) Write(b []byte) (n int, err error) {
	const slice = 256 << 10
	for len(b) > 0 && err == nil {
		var m int
		m, err = c.Conn.Write(b[:min(slice, len(b))])
		c.link.pass(m)
		n, b = n+m, b[m:]
	}
	return n, err
}

const capRate = 100e6 // bytes a second of a source: an Ethernet of 1 Gbit/s, far below what one core moves

// cappedJob is what a second source is worth where each is at its cap.
func cappedJob(quick bool) job {
	const name = "sources/two-capped"
	return job{name, func(ctx context.Context, r *runner) error {
		bytes := uint64(64 * mib)
		if quick {
			bytes = 16 * mib
		}
		p, err := newPart(bytes)
		if err != nil {
			return err
		}
		var sources []transfer.Source
		for i := range 2 {
			link := &pacer{rate: capRate}
			l, err := p.servePlain(func(c net.Conn) net.Conn { return cappedConn{c, link} })
			if err != nil {
				return err
			}
			defer l.stop()
			sources = append(sources, overPlain(sourceName(i), l.Addr().String()))
		}
		values, limits, err := alternate(ctx, r.rounds,
			p.rate(func(ctx context.Context) error { return p.fetch(ctx, sources[:1]) }),
			p.rate(func(ctx context.Context) error { return p.fetch(ctx, sources) }))
		if err != nil {
			return err
		}
		r.add(newFigure(name, "GB/s", values, "one of them", limits, atLeast(1.8)))
		return nil
	}}
}
