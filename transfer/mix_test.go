package transfer

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// TestMix: a lane over QUIC yields to better ones of its own node alone, and comes back when they are gone.
func TestMix(t *testing.T) {
	now := time.Unix(0, 0)
	at := func(s float64) time.Time { return now.Add(time.Duration(s * float64(time.Second))) }
	spare, one, two, other := &Source{Node: "a"}, &Source{Node: "a", Over: TCP}, &Source{Node: "a", Over: TCP}, &Source{Node: "b", Over: TCP}
	m := newMix()
	yields := func(s float64, want bool) {
		t.Helper()
		if yes, _, _ := m.yields(spare, at(s)); yes != want {
			t.Errorf("after %v s: yields %v, want %v", s, yes, want)
		}
	}
	for _, s := range []*Source{spare, one, other} {
		m.begins(s, at(0))
	}
	yields(0, false)
	m.brings(other, 1<<30, at(1))
	yields(1, false) // another node's
	m.brings(spare, 300, at(1))
	m.brings(one, 100, at(1))
	yields(1, false) // slower
	m.begins(two, at(1))
	m.brings(two, 300, at(2))
	yields(2, true) // together they bring 50 and 300 a second, the spare lane 150
	m.ends(spare, at(2))
	if r := m.report(spare, nil); r.Bytes != 300 || r.Took != 2*time.Second || r.Over != QUIC {
		t.Errorf("%+v", r)
	}
	_, _, changed := m.yields(spare, at(2))
	m.ends(two, at(2))
	select {
	case <-changed:
	default:
		t.Error("nobody was told that a lane ended")
	}
	yields(2, false)
	if yes, _, _ := m.yields(one, at(3)); yes {
		t.Error("a lane over TCP yields")
	}
	refused := &Source{Node: "a", Over: TCP} // before there was a manifest
	m.gone(refused)
	m.expects([]*Source{refused, one}, at(3)) // and one has brought chunks
	yields(3, false)
	three, four := &Source{Node: "a", Over: TCP}, &Source{Node: "a", Over: TCP}
	m.expects([]*Source{three, four, other}, at(4))
	yields(4, true)
	m.gone(three)
	yields(4, true) // four may still come
	_, _, changed = m.yields(spare, at(4))
	m.gone(four)
	select {
	case <-changed:
	default:
		t.Error("nobody was told that the last lane to come is gone")
	}
	yields(4, false)
	m.expects([]*Source{{Node: "a", Over: TCP}}, at(5))
	yields(5, true)
	yields(5+headStart.Seconds(), false)
}

// lanesOf makes sources of one node: a lane over QUIC, and those over TCP that end as wrap has them.
func lanesOf(st Store, dials *atomic.Int32, wraps ...func(net.Conn) net.Conn) []Source {
	out := []Source{{Node: "n1", Dial: func(context.Context) (Lane, error) { return newPipeLane("n1", st, nil), nil }}}
	for _, wrap := range wraps {
		out = append(out, Source{Node: "n1", Over: TCP, Dial: func(context.Context) (Lane, error) {
			dials.Add(1)
			if wrap == nil {
				return nil, errors.New("nothing gets through")
			}
			return newPipeLane("n1", st, wrap), nil
		}})
	}
	return out
}

func asItIs(c net.Conn) net.Conn { return c }

// TestLanesOfANode: whatever becomes of one lane, the node's others bring the part, and the node is not blamed.
func TestLanesOfANode(t *testing.T) {
	hung := func(c net.Conn) net.Conn { return &hungConn{c, 1 << 20} }
	for name, c := range map[string]struct {
		bytes int
		wraps []func(net.Conn) net.Conn
		dials int32
	}{
		"all":             {wideFrom, []func(net.Conn) net.Conn{asItIs, asItIs}, 2},
		"none connects":   {wideFrom, []func(net.Conn) net.Conn{nil, nil}, 2},
		"one hangs":       {wideFrom, []func(net.Conn) net.Conn{hung, asItIs}, 2},
		"both hang":       {wideFrom, []func(net.Conn) net.Conn{hung, hung}, 2},
		"of a small part": {wideFrom - 1, []func(net.Conn) net.Conn{asItIs, asItIs}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				k, m, b := makePart(c.bytes, 64<<10)
				sink := newSink(t, m)
				var dials atomic.Int32
				st := &memStore{m: m, b: b, chunk: func(int) error { // no lane is so quick that the others need not dial
					for dials.Load() < c.dials {
						time.Sleep(time.Millisecond)
					}
					return nil
				}}
				rep, err := Fetch(t.Context(), k, lanesOf(st, &dials, c.wraps...), sink.begin)
				if err != nil || len(rep.Failed) != 0 || rep.Bytes != m.Bytes || dials.Load() != c.dials {
					t.Fatalf("%+v, %d dials, %v", rep, dials.Load(), err)
				}
				sink.check(b)
			})
		})
	}
}

// TestQUICThatHangs: the head start ends, and a holder that UDP does not reach serves over TCP.
func TestQUICThatHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(wideFrom, 64<<10)
		sink := newSink(t, m)
		sources := lanesOf(&memStore{m: m, b: b}, new(atomic.Int32), asItIs)
		sources[0].Dial = func(ctx context.Context) (Lane, error) { <-ctx.Done(); return nil, ctx.Err() }
		began := time.Now()
		rep, err := Fetch(t.Context(), k, sources, sink.begin)
		if err != nil || len(rep.Failed) != 0 {
			t.Fatalf("%+v, %v", rep, err)
		}
		if took := time.Since(began); took > 2*headStart {
			t.Errorf("took %v", took)
		}
		sink.check(b)
	})
}

// TestCorruptLane: a lane that sends wrong bytes is evidence against its node, though another lane of the node served well.
func TestCorruptLane(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(wideFrom, 64<<10)
		sink := newSink(t, m)
		bent := make(chan struct{})
		good := lanesOf(&memStore{m: m, b: b, chunk: func(int) error { <-bent; return nil }}, new(atomic.Int32))
		bend := sync.OnceFunc(func() { close(bent) })
		bad := lanesOf(&memStore{m: m, b: b, bend: func(_ int, b []byte) { b[0]++; bend() }}, new(atomic.Int32), asItIs)[1:]
		rep, err := Fetch(t.Context(), k, append(good, bad...), sink.begin)
		if err != nil || len(rep.Corrupt) != 1 || rep.Failed["n1"] == "" {
			t.Fatalf("%+v, %v", rep, err)
		}
		sink.check(b)
	})
}

// keptConn is the client's end of a connection over TCP.
type keptConn struct {
	net.Conn
	kept, closed int
}

func (c *keptConn) Keep()        { c.kept++ }
func (c *keptConn) Close() error { c.closed++; return c.Conn.Close() }

// oneConn is a lane that has one connection.
type oneConn struct{ c *keptConn }

func (l oneConn) Open(context.Context) (net.Conn, error) { return l.c, nil }
func (l oneConn) Peer() replica.NodeName                 { return "n1" }
func (l oneConn) Close()                                 {}

// TestConnectionServesManyPushes: one exchange after another, until one does not end as it should.
func TestConnectionServesManyPushes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, m, b := makePart(1<<20, 64<<10)
		from := &memStore{m: m, b: b}
		here, there := net.Pipe()
		conn := &keptConn{Conn: here}
		var accepted []*memSink
		into := &memStore{}
		into.accept = func() error {
			into.mirror = newSink(t, m)
			if accepted = append(accepted, into.mirror); len(accepted) == 4 {
				return ErrFenced
			}
			return nil
		}
		var served sync.WaitGroup
		var end error
		served.Go(func() { end = ServeAll(t.Context(), "n2", there, into, nil); there.Close() })
		for i := range 3 {
			if err := Push(t.Context(), oneConn{conn}, k, reads(from), Turns{}); err != nil || conn.kept != i+1 || conn.closed != 0 {
				t.Fatalf("push %d: %v; kept %d times, closed %d", i, err, conn.kept, conn.closed)
			}
			accepted[i].check(b)
			time.Sleep(restAfter / 2)
		}
		if err := Push(t.Context(), oneConn{conn}, k, reads(from), Turns{}); !errors.Is(err, ErrFenced) || conn.closed != 1 {
			t.Fatalf("%v; closed %d times", err, conn.closed)
		}
		served.Wait()
		if !errors.Is(end, ErrFenced) {
			t.Errorf("served until %v", end)
		}
	})
}
