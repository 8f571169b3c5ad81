package transfer

import (
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
)

// slowReader takes the first bytes at once, and then so few at a time; none: it hangs until its deadline.
type slowReader struct {
	net.Conn
	left, few int
	every     time.Duration

	mu       sync.Mutex
	deadline time.Time
}

func (s *slowReader) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	s.deadline = t
	s.mu.Unlock()
	return s.Conn.SetReadDeadline(t)
}

func (s *slowReader) SetDeadline(t time.Time) error {
	s.mu.Lock()
	s.deadline = t
	s.mu.Unlock()
	return s.Conn.SetDeadline(t)
}

func (s *slowReader) Read(p []byte) (int, error) {
	if s.left > 0 {
		n, err := s.Conn.Read(p[:min(len(p), s.left)])
		s.left -= n
		return n, err
	}
	if s.few == 0 {
		for {
			s.mu.Lock()
			d := s.deadline
			s.mu.Unlock()
			if wait := time.Until(d); wait <= 0 {
				return 0, os.ErrDeadlineExceeded
			} else {
				time.Sleep(min(wait, 100*time.Millisecond))
			}
		}
	}
	time.Sleep(s.every)
	return s.Conn.Read(p[:min(len(p), s.few)])
}

// TestBesideThatHangsOrIsSlow: whatever goes wrong on a further stream, the main one makes up for it, however long it has nothing to do meanwhile.
func TestBesideThatHangsOrIsSlow(t *testing.T) {
	const size, chunk = 4 * wideFrom, 1 << 20
	k, m, b := makePart(size, chunk)
	for name, c := range map[string]struct {
		few   int
		every time.Duration
	}{
		"hangs":                  {0, 0},
		"100 KB/s":               {10 << 10, 100 * time.Millisecond},
		"a chunk in six seconds": {chunk / 60, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			few, every := c.few, c.every
			bubble.Test(t, func(t *testing.T) {
				mirror := &memStore{mirror: newSink(t, m)}
				mirror.mirror.twice = true
				l := &manyLane{pipeLane: newPipeLane("mirror", mirror, nil), gate: NewGate(9, 9, 1<<30), wrap: func(n int, c net.Conn) net.Conn {
					if n == 2 {
						return &slowReader{Conn: c, left: 5*chunk + 3000, few: few, every: every}
					}
					return c
				}}
				began := time.Now()
				from := reads(&memStore{m: m, b: b, chunk: func(int) error { time.Sleep(10 * time.Millisecond); return nil }})
				more := func() (func(), bool) { return func() {}, true }
				err := Push(t.Context(), l, k, from, Turns{Streams: 3, More: more})
				l.Close()
				t.Logf("%v after %v", err, time.Since(began))
				if err != nil {
					t.Errorf("%v after %v", err, time.Since(began))
				} else {
					mirror.mirror.check(b)
				}
			})
		})
	}
}
