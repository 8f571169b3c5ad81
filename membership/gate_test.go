package membership

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// crowd drives a gate as doors does, and keeps its own account of what the gate allowed.
type crowd struct {
	*testing.T
	gate    gate
	now     time.Time
	last    uint64
	streams map[uint64]*guest
}

type guest struct {
	from     netip.Addr
	member   bool
	since    time.Time
	reads    bool
	wants    int
	granted  bool
	shown    bool
	closed   string
	admitted time.Time
}

func newCrowd(t *testing.T) *crowd {
	return &crowd{T: t, now: time.Unix(1_000_000, 0), streams: map[uint64]*guest{}}
}

func source(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

func (c *crowd) do(acts []act) {
	c.Helper()
	for _, a := range acts {
		g := c.streams[a.id]
		switch a.do {
		case toRead:
			if g.reads {
				c.Fatalf("%d is read twice", a.id)
			}
			g.reads, g.admitted = true, c.now
		case toGrant:
			if !g.reads || g.granted || g.wants == 0 {
				c.Fatalf("%d is granted: %+v", a.id, g)
			}
			g.granted = true
		case toClose:
			if g.closed != "" || g.shown {
				c.Fatalf("%d is closed: %+v", a.id, g)
			}
			g.closed = a.why
		}
	}
	c.judge()
}

// judge says what must hold at every moment.
func (c *crowd) judge() {
	c.Helper()
	read, waits, bytes, per := 0, 0, 0, map[netip.Addr]int{}
	for id, g := range c.streams {
		switch {
		case g.closed != "":
			delete(c.streams, id)
		case g.shown:
			if g.granted {
				bytes += max(g.wants-freeBytes, 0)
			}
		case g.reads:
			read++
			if per[g.from]++; !g.member && per[g.from] > perSource || per[g.from] > perMember {
				c.Fatalf("%d streams of %v are read", per[g.from], g.from)
			}
			if g.granted {
				bytes += max(g.wants-freeBytes, 0)
			}
		default:
			waits++
		}
	}
	if read > maxReading || waits > maxWaiting || bytes > poolBytes || bytes != c.gate.pool {
		c.Fatalf("%d are read, %d wait, %d bytes granted, of which the gate counts %d", read, waits, bytes, c.gate.pool)
	}
}

func (c *crowd) arrive(from int, member bool) (*guest, uint64) {
	c.Helper()
	c.last++
	g := &guest{from: source(from), member: member, since: c.now}
	c.streams[c.last] = g
	c.do(c.gate.arrive(c.last, g.from, member, c.now))
	return g, c.last
}

func (c *crowd) announce(g *guest, id uint64, bytes int) {
	c.Helper()
	g.wants = bytes
	c.do(c.gate.announce(id, bytes, c.now))
}

func (c *crowd) shown(g *guest, id uint64) {
	c.Helper()
	ok, acts := c.gate.shown(id, c.now)
	g.shown = ok
	c.do(acts)
}

func (c *crowd) left(id uint64) {
	c.Helper()
	delete(c.streams, id)
	c.do(c.gate.left(id, c.now))
}

func (c *crowd) pass(d time.Duration) {
	c.Helper()
	c.now = c.now.Add(d)
	c.do(c.gate.tick(c.now))
}

// Whatever many sources do, no more is read than the bounds say, and in the end nothing is left of it.
func TestTheGateHoldsItsBounds(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			c := newCrowd(t)
			for range 600 {
				var of []uint64
				for id := uint64(1); id <= c.last; id++ {
					if c.streams[id] != nil {
						of = append(of, id)
					}
				}
				some := func() (*guest, uint64) {
					if len(of) == 0 {
						return nil, 0
					}
					id := of[r.IntN(len(of))]
					return c.streams[id], id
				}
				switch n := r.IntN(10); {
				case n < 5:
					from := r.IntN(20)
					c.arrive(from, from < 3)
				case n < 7:
					if g, id := some(); g != nil && g.reads && g.wants == 0 {
						c.announce(g, id, 1+r.IntN(2<<20))
					}
				case n < 8:
					if g, id := some(); g != nil && g.granted && !g.shown {
						c.shown(g, id)
					} else if g != nil && g.shown {
						c.left(id)
					}
				case n < 9:
					if g, id := some(); g != nil && g.reads {
						c.left(id)
					}
				default:
					c.pass(time.Duration(r.IntN(200)) * time.Millisecond)
				}
			}
			for id, g := range c.streams {
				if g.reads {
					c.left(id)
				}
			}
			for range 100 { // those that wait are read or closed in their time
				c.pass(streamLife / 4)
				for id, g := range c.streams {
					if g.reads {
						c.left(id)
					}
				}
			}
			if len(c.streams) > 0 || len(c.gate.visits) > 0 || c.gate.pool != 0 || c.gate.waits() {
				t.Errorf("in the end there are %d streams, %d visits, %d bytes", len(c.streams), len(c.gate.visits), c.gate.pool)
			}
		})
	}
}

// Strangers that hold all there is give way: at once to a member, in streamLife/8 to an honest newcomer.
func TestStrangersGiveWay(t *testing.T) {
	full := func(t *testing.T) *crowd {
		c := newCrowd(t)
		for from := range 200 {
			g, id := c.arrive(1000+from%50, false)
			if g.reads {
				c.announce(g, id, strangeMost)
			}
		}
		return c
	}
	t.Run("to a member", func(t *testing.T) {
		c := full(t)
		g, id := c.arrive(1, true)
		if !g.reads {
			t.Fatal("a member's stream waits")
		}
		if c.announce(g, id, memberMost); !g.granted {
			t.Error("a member's state waits for strangers'")
		}
	})
	t.Run("to a newcomer", func(t *testing.T) {
		c := full(t)
		g, id := c.arrive(2, false)
		for !g.reads && g.closed == "" {
			c.pass(gateTick)
		}
		if wait := c.now.Sub(g.since); g.closed != "" || wait > streamLife*3/4 {
			t.Fatalf("a newcomer: %q after %v", g.closed, wait)
		}
		if c.announce(g, id, 300); !g.granted {
			t.Error("a newcomer's few bytes wait")
		}
	})
	t.Run("not two of a member's host", func(t *testing.T) {
		c := newCrowd(t)
		for range 20 {
			c.arrive(1, true)
		}
		if g, _ := c.arrive(2, false); !g.reads {
			t.Error("a member's host took all")
		}
	})
}

// What a stranger announces is bounded, and what it has after a failure: it has to wait before it is heard again.
func TestAStrangerHasLittle(t *testing.T) {
	c := newCrowd(t)
	g, id := c.arrive(1, false)
	if c.announce(g, id, strangeMost+1); g.closed != whyLong {
		t.Errorf("%d bytes of a stranger: %q", strangeMost+1, g.closed)
	}
	for range perSource {
		_, id = c.arrive(1, false)
		c.left(id)
	}
	if g, _ = c.arrive(1, false); g.reads {
		t.Error("a stream is read at once after two of its source showed no key")
	}
	if c.pass(coolFor); !g.reads {
		t.Error("a stream is not read later either")
	}
}
