package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// drip lets the first bytes through, and then a byte every so often: what a link does that loses nearly everything. It never stalls. The donor's
// deadlines do not end it: what it has written lies in its kernel's buffer (or it is hostile).
type drip struct {
	net.Conn
	left  int
	every time.Duration
	now   atomic.Bool // from now on
}

func (d *drip) SetDeadline(t time.Time) error {
	if t.Equal(time.Unix(1, 0)) {
		return d.Conn.SetDeadline(t)
	}
	return nil
}
func (d *drip) SetWriteDeadline(time.Time) error { return nil }
func (d *drip) SetReadDeadline(time.Time) error  { return nil }

func (d *drip) Write(b []byte) (n int, err error) {
	if d.now.Load() {
		d.left = 0
	}
	if len(b) <= d.left {
		d.left -= len(b)
		return d.Conn.Write(b)
	}
	if n, err = d.Conn.Write(b[:d.left]); err != nil {
		return n, err
	}
	d.left = 0
	for n < len(b) {
		time.Sleep(d.every)
		if _, err := d.Conn.Write(b[n : n+1]); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func fetchWithin(t *testing.T, limit time.Duration, k Key, sources []Source, begin func(replica.Manifest) (Sink, error)) (Report, time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	rep, err := Fetch(ctx, k, sources, begin)
	return rep, time.Since(began), err
}

// TestGrayNodeHoldsAChunk: the link of a node with two lanes becomes a drip while one of them waits for chunks and the other has nothing to do.
// The idle one asks for what the other waits for, and the healthy donor must not be kept from it.
func TestGrayNodeHoldsAChunk(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(64*4*kib, 4*kib)
		st := &memStore{m: m, b: b, chunk: func(int) error { time.Sleep(time.Millisecond); return nil }}
		slow := &memStore{m: m, b: b, chunk: func(int) error { time.Sleep(5 * time.Millisecond); return nil }}
		sink := newSink(t, m)
		gray := func(left int) Source {
			return bentSource("gray", st, func(c net.Conn) net.Conn { return &drip{Conn: c, left: left, every: 4 * time.Second} })
		}
		one := gray(16 * 4 * kib)
		two := bentSource("gray", st, func(c net.Conn) net.Conn {
			d := &drip{Conn: c, left: 1 << 30, every: 4 * time.Second}
			time.AfterFunc(hedgeAfter/2, func() { d.now.Store(true) })
			return d
		})
		rep, took, err := fetchWithin(t, time.Hour, k, []Source{one, two, source("good", slow)}, sink.begin)
		t.Logf("%v, took %v of virtual time, by %v", err, took, rep.By)
		if err != nil || took > time.Minute {
			t.Errorf("%v after %v: %+v", err, took, rep)
		}
	})
}

// TestManifestAndThenNothing: what is small gets through, what is large does not (a path whose MTU is wrong). The node has two addresses.
func TestManifestAndThenNothing(t *testing.T) {
	for _, n := range []int{1, 2} {
		bubble.Test(t, func(t *testing.T) {
			k, m, b := makePart(64*4*kib, 4*kib)
			st := &memStore{m: m, b: b}
			var sources []Source
			for i := range n {
				s := bentSource("n1", st, func(c net.Conn) net.Conn { return &hungConn{c, 3 * kib} })
				s.At = fmt.Sprint("10.0.0.", i)
				dial := s.Dial
				first := true
				s.Dial = func(ctx context.Context) (Lane, error) {
					if first && i > 0 { // a SYN was lost
						time.Sleep(3 * time.Second)
					}
					first = false
					return dial(ctx)
				}
				sources = append(sources, s)
			}
			rep, took, err := fetchWithin(t, time.Hour, k, sources, newSink(t, m).begin)
			t.Logf("%d addresses: %v after %v", n, err, took)
			if took > time.Minute {
				t.Errorf("%d addresses: not given up after %v: %v %+v", n, took, err, rep)
			}
		})
	}
}

// TestGrayDonorsKeepTheReserveOut: the donors that are asked first drip; the next one is healthy.
func TestGrayDonorsKeepTheReserveOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(64*4*kib, 4*kib)
		st := &memStore{m: m, b: b}
		var sources []Source
		for i := range donorsAtOnce {
			sources = append(sources, bentSource(replica.NodeName(fmt.Sprint("gray", i)), st, func(c net.Conn) net.Conn { return &drip{Conn: c, left: 20 * kib, every: 4 * time.Second} }))
		}
		sources = append(sources, source("good", st))
		sink := newSink(t, m)
		rep, took, err := fetchWithin(t, time.Hour, k, sources, sink.begin)
		t.Logf("%v after %v, by %v", err, took, rep.By)
		if err != nil || took > time.Minute {
			t.Errorf("%v after %v: %+v", err, took, rep)
		}
	})
}

// TestGrayTCP: both lanes over TCP drip after a while; UDP is well.
func TestGrayTCP(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(2*wideFrom, 64*kib)
		st := &memStore{m: m, b: b, chunk: func(int) error { time.Sleep(time.Millisecond); return nil }}
		gray := func() Source {
			s := bentSource("n1", st, func(c net.Conn) net.Conn { return &drip{Conn: c, left: 1 << 20, every: 4 * time.Second} })
			s.Over = TCP
			return s
		}
		sink := newSink(t, m)
		rep, took, err := fetchWithin(t, time.Hour, k, []Source{source("n1", st), gray(), gray()}, sink.begin)
		t.Logf("%v after %v, by %v, lanes %+v", err, took, rep.By, rep.Lanes)
		if err != nil || took > time.Minute {
			t.Errorf("%v after %v: %+v", err, took, rep)
		}
	})
}

// TestSmallPartWhereUDPDies: the lane over QUIC brings the manifest and no more. TCP is well.
func TestSmallPartWhereUDPDies(t *testing.T) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"hangs":  func(c net.Conn) net.Conn { return &hungConn{c, 20 * kib} },
		"breaks": func(c net.Conn) net.Conn { return &brokenWriter{Conn: c, left: 20 * kib} },
		"drips":  func(c net.Conn) net.Conn { return &drip{Conn: c, left: 20 * kib, every: 4 * time.Second} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				k, m, b := makePart(64*4*kib, 4*kib)
				st := &memStore{m: m, b: b}
				tcp := source("n1", st)
				tcp.Over = TCP
				sink := newSink(t, m)
				rep, took, err := fetchWithin(t, time.Hour, k, []Source{bentSource("n1", st, wrap), tcp}, sink.begin)
				t.Logf("%v after %v, by %v", err, took, rep.By)
				if err != nil || took > time.Minute {
					t.Errorf("%v after %v: %+v", err, took, rep)
				}
			})
		})
	}
}

// brokenWriter breaks once so many bytes were written.
type brokenWriter struct {
	net.Conn
	left int
}

func (b *brokenWriter) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		b.Close()
		return 0, net.ErrClosed
	}
	return b.Conn.Write(p)
}

// TestOnlyDonorDrips: the fetch fails, and what plans it can have the part brought from elsewhere.
func TestOnlyDonorDrips(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(64*4*kib, 4*kib)
		rep, took, err := fetchWithin(t, time.Hour, k, []Source{bentSource("n1", &memStore{m: m, b: b}, func(c net.Conn) net.Conn { return &drip{Conn: c, left: 20 * kib, every: 4 * time.Second} })}, newSink(t, m).begin)
		if !errors.Is(err, ErrStalled) || rep.Failed["n1"] == "" || took > time.Minute {
			t.Errorf("%v after %v: %+v", err, took, rep)
		}
	})
}

// TestReceiverTakesLongToBegin: it reads and hashes what it has of the part already, which takes minutes where that is a hundred gigabytes. No
// source is set aside for that.
func TestReceiverTakesLongToBegin(t *testing.T) {
	for _, lanes := range []int{1, 3} {
		bubble.Test(t, func(t *testing.T) {
			k, m, b := makePart(2*wideFrom, 64*kib)
			st := &memStore{m: m, b: b}
			var sources []Source
			for i := range lanes {
				s := source("n1", st)
				if i > 0 {
					s.Over = TCP
				}
				sources = append(sources, s)
			}
			sink := newSink(t, m)
			rep, took, err := fetchWithin(t, time.Hour, k, sources, func(m replica.Manifest) (Sink, error) {
				time.Sleep(3 * time.Minute)
				return sink.begin(m)
			})
			if err != nil || len(rep.Failed) != 0 || slices.ContainsFunc(rep.Lanes, func(l LaneReport) bool { return l.Err != nil }) {
				t.Errorf("%d lanes: %v after %v: %+v", lanes, err, took, rep)
			}
			sink.check(b)
		})
	}
}
