package node

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/replica"
)

func TestWays(t *testing.T) {
	p := newPaths(time.Second)
	if got := p.ways("n2", "a:1"); !slices.Equal(got, []string{"a:1"}) {
		t.Errorf("a node that was never probed: %v", got)
	}
	for _, tc := range []struct {
		answers [3]answer // of a, b and c
		from    string
		want    []string
		dead    string // addresses
	}{
		{[3]answer{alive, alive, alive}, "a:1", []string{"a:1", "b:1", "c:1"}, ""},
		{[3]answer{alive, alive, alive}, "b:1", []string{"b:1", "a:1", "c:1"}, ""},
		{[3]answer{unanswered, alive, unanswered}, "a:1", []string{"b:1", "a:1", "c:1"}, "a:1 c:1 "},
		{[3]answer{unanswered, unanswered, adopting}, "a:1", []string{"c:1", "a:1", "b:1"}, "a:1 b:1 "},
		{[3]answer{unanswered, refused, unanswered}, "a:1", []string{"b:1", "a:1", "c:1"}, ""},
		{[3]answer{unanswered, unanswered, unanswered}, "a:1", []string{"a:1", "b:1", "c:1"}, ""},
		{[3]answer{unanswered, alive, alive}, "d:1", []string{"d:1"}, "a:1 "}, // none of its addresses
	} {
		p.probed("n2", []string{"a:1", "b:1", "c:1"}, tc.answers[:], make([]time.Duration, 3), time.Now())
		if got := p.ways("n2", tc.from); !slices.Equal(got, tc.want) {
			t.Errorf("%v: from %s by %v, want %v", tc.answers, tc.from, got, tc.want)
		}
		dead := ""
		for _, addr := range []string{"a:1", "b:1", "c:1", "d:1"} {
			if p.dead("n2", addr) {
				dead += addr + " "
			}
		}
		if dead != tc.dead {
			t.Errorf("%v: dead are %q, want %q", tc.answers, dead, tc.dead)
		}
	}
}

// What moved at an address is counted, once, and is not forgotten with the next probe.
func TestMoved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPaths(time.Second)
		for _, bytes := range []uint64{3 << 20, 10} { // the latter is too little for a rate
			m := p.begin("n2", "b:1", func() {})
			m.sent.Add(bytes)
			m.received.Add(1)
			time.Sleep(time.Second)
			m.end()
			m.end()
		}
		p.probed("n2", []string{"b:1"}, []answer{alive}, []time.Duration{time.Millisecond}, time.Now())
		want := control.PathStatus{Peer: "n2", Addr: "b:1", State: "alive", ProbeUS: 1000, Sent: 3<<20 + 10, Received: 2, Rate: 3<<20 + 1}
		if got := p.status(); len(got) != 1 || got[0] != want {
			t.Errorf("status %+v, want %+v", got, want)
		}
	})
}

// What is under way at an address that has been silent for long is broken off, where another answers.
func TestWhatIsUnderWayAtADeadAddressIsBrokenOff(t *testing.T) {
	p := newPaths(time.Second)
	cuts := map[string]int{}
	for _, addr := range []string{"a:1", "b:1"} {
		defer p.begin("n2", addr, func() { cuts[addr]++ }).end()
	}
	p.begin("n2", "a:1", func() { cuts["over"]++ }).end()
	defer p.begin("n3", "a:1", func() { cuts["another's"]++ }).end()
	now := time.Now()
	probed := func(after time.Duration, a, b answer, want int) {
		t.Helper()
		p.probed("n2", []string{"a:1", "b:1"}, []answer{a, b}, make([]time.Duration, 2), now.Add(after))
		if cuts["a:1"] != want || len(cuts) > 1 {
			t.Errorf("after %v: cuts %v, want %d of a:1", after, cuts, want)
		}
	}
	probed(0, unanswered, alive, 0)
	probed(900*time.Millisecond, alive, alive, 0)
	probed(time.Second, unanswered, alive, 0)
	probed(2*time.Second, unanswered, unanswered, 0) // the node is silent
	probed(3*time.Second, unanswered, alive, 1)
}

// What moves at an address whose probes are not answered goes on until it stands still: a firewall there may stop UDP alone.
func TestWhatMovesIsNotBrokenOff(t *testing.T) {
	p, cuts := newPaths(time.Second), 0
	ours, theirs := p.begin("n2", "a:1", func() { cuts++ }), p.begin("n2", "a:1", func() { cuts++ })
	now := time.Now()
	for i := range 10 {
		ours.received.Add(1 << 20)
		theirs.served.Add(1)
		if p.probed("n2", []string{"a:1", "b:1"}, []answer{unanswered, alive}, make([]time.Duration, 2), now.Add(time.Duration(i)*time.Second)); cuts != 0 {
			t.Fatalf("broken off at look %d", i)
		}
	}
	if p.probed("n2", []string{"a:1", "b:1"}, []answer{unanswered, alive}, make([]time.Duration, 2), now.Add(time.Minute)); cuts != 2 {
		t.Errorf("%d of 2 that stand still are broken off", cuts)
	}
}

// A silent way takes its share of the time, not all of it.
func TestTryEach(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		dial := func(ctx context.Context, addr string) (string, error) {
			if addr == "good" {
				return addr, nil
			}
			<-ctx.Done()
			return "", errors.New(addr + " is silent")
		}
		began := time.Now()
		got, err := tryEach(ctx, []string{"bad", "good"}, dial)
		if got != "good" || err != nil || time.Since(began) != time.Second/2 {
			t.Errorf("%q, %v after %v", got, err, time.Since(began))
		}
		if _, err = tryEach(ctx, []string{"bad", "worse"}, dial); err == nil {
			t.Error("nobody answered, and there is a connection")
		}
	})
}

// One address that answers speaks for a node whose others are silent.
func TestANodeLivesByAnyOfItsAddresses(t *testing.T) {
	w := &witnessed{}
	p, h := newProber(t, w), newHost(t)
	h.SetProbeReply(endpoint.ProbeReply{Node: "n2", Incarnation: 22})
	n := replica.Node{Name: "n2", Incarnation: 22, Addr: h.silent, Addrs: []string{h.Addr().String()}}
	w.seen = host.Witness{Nodes: map[replica.NodeName]replica.Node{"n2": n}, Live: map[replica.JobID]replica.Step{fixture.JobID: 7}}
	p.interval, p.silent, p.gossip = 200*time.Millisecond, 0, book{{Name: "n2", Incarnation: 22}} // gossip gave it up
	for range 3 {
		p.round(t.Context())
	}
	if len(w.said) > 0 || p.state("n2") != "alive" {
		t.Errorf("suspected: %v, state %s", w.said, p.state("n2"))
	}
	if got := p.paths.ways("n2", h.silent); !slices.Equal(got, []string{h.Addr().String(), h.silent}) {
		t.Errorf("ways %v", got)
	}
	n.Addrs = []string{h.silent}
	w.seen.Nodes["n2"] = n
	p.round(t.Context())
	p.round(t.Context())
	if len(w.said) == 0 {
		t.Error("none of its addresses answers, and nobody is told")
	}
}

// A connection that a node opened counts as its address', whatever port it comes from.
func TestAcceptedAtADeadAddress(t *testing.T) {
	p := newPaths(0)
	probed := func(first answer) {
		p.probed("n2", []string{"10.0.0.2:7400", "[fd00::2]:7400"}, []answer{first, alive}, make([]time.Duration, 2), time.Now())
	}
	probed(alive)
	var cut []string
	for _, from := range []string{"10.0.0.2:40000", "[::ffff:10.0.0.2]:40001", "[fd00::2]:40000", "10.0.0.9:40000"} {
		defer p.accepted("n2", net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)), func() { cut = append(cut, from) }).end()
	}
	probed(unanswered)
	if slices.Sort(cut); !slices.Equal(cut, []string{"10.0.0.2:40000", "[::ffff:10.0.0.2]:40001"}) {
		t.Errorf("broken off: %v", cut)
	}
}
