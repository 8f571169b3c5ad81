package bench

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/replicad/replicad/transfer"
)

// countedConn counts the bytes that a source sends.
type countedConn struct {
	net.Conn
	sent *atomic.Uint64
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent.Add(uint64(n))
	return n, err
}

// resentJobs are what the death of one end at half of a part costs the network: bytes that sources sent beyond those of the part,
// with the frames around chunks, over TLS and from two sources.
func resentJobs(quick bool) (list []job) {
	bytes := uint64(gib)
	if quick {
		bytes = 64 * mib
	}
	for _, name := range slices.Sorted(maps.Keys(breaks)) {
		once := breaks[name]
		list = append(list, job{name, func(ctx context.Context, r *runner) error {
			if need, have := 2*bytes+gib, meminfo("MemAvailable"); have < need {
				return leftOut{fmt.Sprintf("it needs %d MiB of memory, and %d are available", need/mib, have/mib)}
			}
			p, err := newPart(bytes)
			if err != nil {
				return err
			}
			ids, err := newIdentities(r.sub(filepath.Base(name)), receiverName, sourceName(0), sourceName(1))
			if err != nil {
				return err
			}
			var values, limits []float64
			for range r.rounds {
				sent, err := once(ctx, &broken{part: p, ids: ids})
				if err != nil {
					return err
				}
				values, limits = append(values, (float64(sent)-float64(bytes))/mib), append(limits, float64(bytes)/mib)
			}
			r.add(newFigure(name, "MiB", values, "the part", limits, atMost(0.02)))
			return nil
		}})
	}
	return list
}

// breaks are the ends that die, by the figure's name.
var breaks = map[string]func(context.Context, *broken) (sent uint64, err error){"resent/source-killed": sourceKilled, "resent/receiver-killed": receiverKilled}

// broken is a transfer in which one end dies.
type broken struct {
	part *part
	ids  identities
	sent atomic.Uint64
}

// nodes starts two sources that count, and a receiver.
func (b *broken) nodes() (sources []*node, receiver *node, stop func(), err error) {
	stop = func() {
		for _, n := range append(sources, receiver) {
			if n != nil {
				n.stop()
			}
		}
	}
	for i := range 2 {
		n, err := b.ids.start(sourceName(i), b.part, func(c net.Conn) net.Conn { return countedConn{c, &b.sent} })
		if err != nil {
			return nil, nil, stop, err
		}
		sources = append(sources, n)
	}
	receiver, err = b.ids.start(receiverName, b.part, nil)
	return sources, receiver, stop, err
}

// lanes are two over TLS to each source, as daemons have.
func lanes(sources []*node, receiver *node) (list []transfer.Source) {
	for _, n := range sources {
		for range tcpLanes {
			list = append(list, n.overTLS(receiver))
		}
	}
	return list
}

// half calls fn in a goroutine once half of the part was put; the returned function waits for that.
func (b *broken) half(s *sink, fn func()) (wait func()) {
	reached, over := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	s.seen = func(bytes uint64) {
		if bytes >= b.part.bytes()/2 && once.CompareAndSwap(false, true) {
			close(reached)
		}
	}
	go func() {
		defer close(over)
		<-reached
		fn()
	}()
	return func() {
		if once.CompareAndSwap(false, true) {
			close(reached)
		}
		<-over
	}
}

// sourceKilled has one of two sources vanish; the other one brings the rest.
func sourceKilled(ctx context.Context, b *broken) (sent uint64, err error) {
	sources, receiver, stop, err := b.nodes()
	defer stop()
	if err != nil {
		return 0, err
	}
	s := b.part.sink()
	wait := b.half(s, sources[0].stop)
	_, err = transfer.Fetch(ctx, b.part.key, lanes(sources, receiver), s.begin)
	wait()
	return b.sent.Load(), b.whole(s, err)
}

// receiverKilled has the receiver vanish with all its connections; another one goes on with what had arrived, as a daemon does
// that is started again and has its arenas from the keeper.
func receiverKilled(ctx context.Context, b *broken) (sent uint64, err error) {
	sources, receiver, stop, err := b.nodes()
	defer func() { stop() }()
	if err != nil {
		return 0, err
	}
	s := b.part.sink()
	first, cancel := context.WithCancel(ctx)
	wait := b.half(s, func() { cancel(); receiver.stop() })
	_, err = transfer.Fetch(first, b.part.key, lanes(sources, receiver), s.begin)
	wait()
	if err == nil {
		return 0, fmt.Errorf("the receiver was to be killed at half of %d bytes and finished", b.part.bytes())
	}
	again, err := b.ids.start(receiverName, b.part, nil)
	if err != nil {
		return 0, err
	}
	defer again.stop()
	_, err = transfer.Fetch(ctx, b.part.key, lanes(sources, again), s.begin)
	return b.sent.Load(), b.whole(s, err)
}

// whole sees that the part is there.
func (b *broken) whole(s *sink, err error) error {
	if put := s.put.Load(); err == nil && put != b.part.bytes() {
		err = fmt.Errorf("%d of %d bytes were put: each chunk once was wanted", put, b.part.bytes())
	}
	return err
}
