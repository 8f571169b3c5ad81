package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// sick is a source's way to fail, drawn for each lane.
func sick(rnd *rand.Rand, name replica.NodeName, m replica.Manifest, b []byte) Source {
	st := &memStore{m: m, b: b}
	pause := time.Duration(rnd.IntN(30)) * time.Millisecond
	st.chunk = func(int) error { time.Sleep(pause); return nil }
	left := rnd.IntN(600 * kib)
	s := source(name, st)
	switch rnd.IntN(11) {
	case 0:
		s.Dial = func(context.Context) (Lane, error) { return nil, errors.New("no route") }
	case 1:
		s.Dial = func(ctx context.Context) (Lane, error) { <-ctx.Done(); return nil, ctx.Err() }
	case 2:
		s = bentSource(name, st, func(c net.Conn) net.Conn { return &hungConn{c, left} })
	case 3:
		s = bentSource(name, st, func(c net.Conn) net.Conn { return &brokenWriter{Conn: c, left: left} })
	case 4:
		s = bentSource(name, st, func(c net.Conn) net.Conn { return &drip{Conn: c, left: left, every: 4 * time.Second} })
	case 5:
		says := []error{ErrNotYet, ErrRefused, ErrFenced, ErrUnknownPart, errors.New("odd")}[rnd.IntN(5)]
		st.open = func() error { return says }
	case 6:
		st.bend = func(i int, b []byte) { b[0] ^= byte(1 + i) }
	case 7:
		st.chunk = func(i int) error {
			if i%7 == 3 {
				return errors.New("slot was freed")
			}
			return nil
		}
	case 8:
		bad := m
		bad.Bytes--
		st.m = bad
	case 9:
		st.chunk = func(int) error { time.Sleep(7 * time.Second); return nil }
	case 10: // slow, and well
		st.chunk = func(int) error { time.Sleep(300 * time.Millisecond); return nil }
	}
	return s
}

// TestStorm: whatever becomes of the others, one donor that is well brings the part, soon, each chunk once.
func TestStorm(t *testing.T) {
	seeds := uint64(60) // STORM=3000 for a campaign
	if n, err := strconv.Atoi(os.Getenv("STORM")); err == nil {
		seeds = uint64(n)
	}
	for seed := uint64(0); seed < seeds; seed += racing.Stride {
		bubble.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 77))
			size := []int{0, 1, 100 * kib, 700*kib + 5, 9 << 20}[rnd.IntN(5)]
			k, m, b := makePart(size, []uint32{4 * kib, 64 * kib, 1 << 20}[rnd.IntN(3)])
			if len(m.Chunks) > 400 {
				k, m, b = makePart(size, 64*kib)
			}
			var sources []Source
			nodes := 1 + rnd.IntN(8)
			well := rnd.IntN(nodes)
			desc := ""
			donor := &memStore{m: m, b: b, chunk: func(int) error { time.Sleep(2 * time.Millisecond); return nil }}
			for n := range nodes {
				name := replica.NodeName(fmt.Sprint("n", n))
				lanes, addrs, quic := 1+rnd.IntN(3), rnd.IntN(2) == 0, rnd.IntN(4) > 0
				good := rnd.IntN(lanes)
				for i := range lanes {
					var s Source
					if n == well && i == good {
						s = source(name, donor)
					} else {
						s = sick(rnd, name, m, b)
					}
					if i > 0 || !quic {
						s.Over = TCP
					}
					if addrs {
						s.At = fmt.Sprint("10.0.", n, ".", i)
					}
					sources = append(sources, s)
					desc += fmt.Sprintf(" %s/%v%s", name, s.Over, map[bool]string{true: "*"}[n == well && i == good])
				}
			}
			for range rnd.IntN(3) {
				s := sick(rnd, replica.NodeName(fmt.Sprint("r", rnd.IntN(3))), m, b)
				s.Receives = true
				sources = append(sources, s)
			}
			sink := newSink(t, m)
			rep, took, err := fetchWithin(t, time.Hour, k, sources, sink.begin)
			if err != nil || took > 2*time.Minute {
				t.Errorf("seed %d, %d bytes, %d chunks:%s: %v after %v: failed %v", seed, size, len(m.Chunks), desc, err, took, rep.Failed)
			} else {
				sink.check(b)
				if n := donor.readers.Load(); n != 0 {
					t.Errorf("seed %d:%s: %d readers are left open", seed, desc, n)
				}
				if took > 40*time.Second {
					t.Logf("seed %d:%s took %v", seed, desc, took)
				}
			}
		})
	}
}

// TestPushStorm: whatever becomes of the streams beside the main one, the part arrives.
func TestPushStorm(t *testing.T) {
	for seed := uint64(0); seed < 6; seed += racing.Stride {
		bubble.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 78))
			k, m, b := makePart(2*wideFrom+rnd.IntN(3*wideFrom), []uint32{64 * kib, 1 << 20, 4 << 20}[rnd.IntN(3)])
			mirror := &memStore{mirror: newSink(t, m)}
			mirror.mirror.twice = true
			streams := 2 + rnd.IntN(3)
			how := make([]int, streams+1)
			for i := range how {
				how[i] = rnd.IntN(6)
			}
			l := &manyLane{pipeLane: newPipeLane("mirror", mirror, nil), gate: NewGate(9, 1+rnd.IntN(5), 1<<30)}
			left, soon := rnd.IntN(12<<20), rnd.IntN(100)
			l.wrap = func(n int, c net.Conn) net.Conn {
				if n == 1 || n >= len(how) {
					return c
				}
				switch how[n] {
				case 1:
					return &slowReader{Conn: c, left: left}
				case 2:
					return &slowReader{Conn: c, left: left, few: 30 << 10, every: 100 * time.Millisecond}
				case 3:
					return &brokenConn{Conn: c, left: left}
				case 4:
					return &hungConn{c, soon}
				case 5:
					return &slowReader{Conn: c, left: left, few: 4 << 10, every: 100 * time.Millisecond}
				}
				return c
			}
			began := time.Now()
			from := reads(&memStore{m: m, b: b, chunk: func(int) error { time.Sleep(time.Millisecond); return nil }})
			err := Push(t.Context(), l, k, from, Turns{Streams: streams, More: func() (func(), bool) { return func() {}, true }})
			l.Close()
			if err != nil {
				t.Errorf("seed %d: streams fail by %v, chunks of %d: %v after %v", seed, how[2:], m.ChunkBytes, err, time.Since(began))
			} else {
				mirror.mirror.check(b)
			}
		})
	}
}
