package node

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/membership"
	"github.com/replicad/replicad/replica"
)

// port is an endpoint that nobody connects to; probes need no identity but their key.
func port(t *testing.T) *endpoint.Endpoint {
	t.Helper()
	e, err := endpoint.Listen(endpoint.Config{Addr: "127.0.0.1:0", ServerTLS: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return new(tls.Certificate), nil }}, ClientTLS: func(replica.NodeName, ...string) *tls.Config { return nil }, ProbeKeys: func() [][]byte { return [][]byte{make([]byte, 32)} }, ResetKey: [32]byte{1},
		PeerName: func(tls.ConnectionState) (c replica.ClusterID, n replica.NodeName, err error) { return c, n, nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) }) //nolint:errcheck // it ends with ctx
	t.Cleanup(func() { cancel(); running.Wait(); e.Close() })
	return e
}

// book is what gossip says.
type book []membership.Member

func (b book) Members() []membership.Member { return b }

var silentPeer = replica.Holder{Node: "n2", Incarnation: 22}

// A host that answers, and what may be at its address: a daemon, nobody, or silence.
type peerHost struct {
	*endpoint.Endpoint
	silent, closed string
}

func newHost(t *testing.T) peerHost {
	t.Helper()
	hole, err := net.ListenPacket("udp", "127.0.0.1:0") // takes what comes and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hole.Close() })
	gone, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	return peerHost{port(t), hole.LocalAddr().String(), gone.LocalAddr().String()}
}

// patienceWith is how long a probe of addr may take: what is silent must be waited out.
func (h peerHost) patienceWith(addr string) time.Duration {
	if addr == h.silent {
		return 20 * time.Millisecond
	}
	return fixture.Patience
}

// witnessed is a host that has its prober probe, and what it was told.
type witnessed struct {
	seen  host.Witness
	asked int
	said  []control.Suspect
}

func (w *witnessed) Witness(context.Context) (host.Witness, bool) { w.asked++; return w.seen, true }

func (w *witnessed) Suspect(_ context.Context, s []control.Suspect) { w.said = append(w.said, s...) }

func newProber(t *testing.T, w *witnessed) *prober {
	return &prober{host: w, path: port(t), paths: newPaths(time.Second), gossip: book{}, silent: time.Hour, peers: map[replica.NodeName]peerState{}}
}

// What a probe meets, one after the other, and what the node counts as after it.
func TestProbeStates(t *testing.T) {
	p, h := newProber(t, nil), newHost(t)
	probe := func(addr string, inc replica.NodeIncarnation) {
		was := p.silent
		p.interval, p.silent = h.patienceWith(addr), time.Hour // or a probe would be late on a machine without time, and say nothing
		p.probe(t.Context(), "n2", replica.Node{Name: "n2", Addr: addr, Incarnation: inc})
		p.silent = was
	}
	answers := func(r endpoint.ProbeReply) string { h.SetProbeReply(r); return h.Addr().String() }
	good := endpoint.ProbeReply{Node: "n2", Incarnation: 22}
	state := func(what, want string, silence bool) {
		t.Helper()
		p.mu.Lock()
		s := p.peers["n2"]
		p.mu.Unlock()
		if got := p.state("n2"); got != want || s.silentSince.IsZero() == silence {
			t.Errorf("after %s: %s, silent since %v; want %s, silent %v", what, got, s.silentSince, want, silence)
		}
		if got := p.hears("n2"); got != (want == "alive" && !silence) {
			t.Errorf("after %s it is heard: %v", what, got)
		}
		if got := p.answers("n2"); got != (want == "alive" || strings.Contains(what, "adopting")) {
			t.Errorf("after %s it counts as answering: %v", what, got)
		}
	}
	if got := p.state("n2"); got != "unknown" {
		t.Errorf("a node that was never probed is %s", got)
	}
	if p.hears("n2") {
		t.Error("a node that was never probed is heard")
	}
	probe(answers(good), 22)
	state("an answer", "alive", false)
	probe(h.silent, 22)
	state("silence that has not lasted", "alive", true)
	since := p.peers["n2"].silentSince
	probe(h.silent, 22)
	if got := p.peers["n2"].silentSince; !got.Equal(since) {
		t.Errorf("the silence that began at %v is said to have begun at %v", since, got)
	}
	p.silent = 0
	state("silence that has lasted", "silent", true)
	probe(h.closed, 22)
	state("a refusal: its host answers", "unobserved", false)
	probe(h.silent, 22)
	state("silence after a refusal", "silent", true)
	probe(answers(good), 22)
	state("an answer after silence", "alive", false)
	adopting := good
	adopting.Adopting = true
	probe(answers(adopting), 22)
	state("an answer of a daemon that is adopting, which counts as silence", "silent", true)
	probe(answers(good), 22)
	other := good
	other.Node = "n3"
	probe(answers(other), 22)
	state("an answer of another node at its address", "silent", true)
	probe(answers(good), 22)
	life := good
	life.Incarnation = 21
	probe(answers(life), 22)
	state("an answer of another life of the node", "silent", true)
	probe(answers(good), 22)
	life.Adopting = true
	probe(answers(life), 22)
	state("an answer of another life that takes its arenas back", "silent", true)
	since = p.peers["n2"].silentSince
	probe(h.silent, 23)
	state("silence of another life of the node", "silent", true)
	if s := p.peers["n2"]; s.incarnation != 23 || !s.silentSince.After(since) {
		t.Errorf("what its last life failed to answer counts for the next: %+v", s)
	}
}

// A waste is a data path in virtual time, on which each address but that of silence answers at once.
type waste map[string]endpoint.ProbeReply

const silence = "192.0.2.1:7400"

func (w waste) Probe(ctx context.Context, addr string) (endpoint.ProbeReply, error) {
	if addr == silence {
		<-ctx.Done()
		return endpoint.ProbeReply{}, ctx.Err()
	}
	if r, ok := w[addr]; ok {
		return r, nil
	}
	return endpoint.ProbeReply{}, endpoint.ErrRefused
}

func (waste) Source() netip.Addr { return netip.MustParseAddr("127.0.0.1") }

func newWasteProber(w *witnessed, path waste) *prober {
	return &prober{host: w, path: path, paths: newPaths(time.Second), gossip: book{}, interval: 20 * time.Millisecond, peers: map[replica.NodeName]peerState{}}
}

// The leader is told of a node that gossip gave up and whose data path has been silent for long enough, and of no other.
func TestSuspicionIsSpoken(t *testing.T) {
	gone := func(n replica.NodeName) book {
		return book{{Name: "n3", Alive: true}, {Name: "n2", Incarnation: 22, Alive: n != "n2"}, {Name: n, Alive: false}}
	}
	at := func(addr string) book { return book{{Name: "n2", Addr: addr}} }
	stopped, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts: the kernel alone answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopped.Close() })
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	const here, other, down = "192.0.2.2:7400", "192.0.2.3:7400", "192.0.2.4:7400"
	path := waste{here: {Node: "n2", Incarnation: 22}, other: {Node: "n2", Incarnation: 21}}
	for what, c := range map[string]struct {
		addr   string
		gossip book
		silent time.Duration
		rounds int
		want   int
		grace  time.Duration // for which its host speaks for its daemon
	}{
		"silent, and gossip gave it up":          {silence, gone("n2"), 0, 1, 1, 0},
		"said again each round":                  {silence, gone("n2"), 0, 3, 3, 0},
		"silent, gossip sees it":                 {silence, gone("n3"), 0, 2, 0, 0},
		"silent, gossip sees another life of it": {silence, book{{Name: "n2", Incarnation: 21, Alive: true}}, 0, 2, 2, 0},
		"another life of it answers":             {other, book{{Name: "n2", Incarnation: 21, Alive: true}}, 0, 2, 2, 0},
		"silent, gossip knows nothing":           {silence, nil, 0, 2, 0, 0},
		"not silent for long":                    {silence, gone("n2"), time.Hour, 2, 0, 0},
		"its daemon is down":                     {down, gone("n2"), 0, 2, 0, 0},
		"its daemon is stopped":                  {silence, at(stopped.Addr().String()), 0, 2, 0, time.Hour},
		"and for good":                           {silence, at(stopped.Addr().String()), 0, 2, 2, 0},
		"no port, but a host":                    {silence, at(nobody.Addr().String()), 0, 2, 0, time.Hour},
		"it answers":                             {here, gone("n2"), 0, 2, 0, 0},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { // a round that takes long is that of a daemon that stood still, and says nothing
				w := &witnessed{seen: host.Witness{Nodes: map[replica.NodeName]replica.Node{"n2": {Name: "n2", Incarnation: 22, Addr: c.addr}}, Live: map[replica.JobID]replica.Step{fixture.JobID: 7}}}
				p := newWasteProber(w, path)
				p.gossip, p.silent, p.grace = c.gossip, c.silent, c.grace
				for range c.rounds {
					p.round(t.Context())
				}
				if len(w.said) != c.want {
					t.Errorf("said %+v, want %d", w.said, c.want)
				}
				for _, s := range w.said {
					if s.Target != silentPeer || len(s.Live) != 1 || s.Live[fixture.JobID] != 7 {
						t.Errorf("said %+v", s)
					}
				}
			})
		})
	}
}

// Without a job nobody waits to hear that a node is silent: a second passes between two rounds, and no round is late for that.
func TestProbesAreRareWithoutJobs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := &witnessed{seen: host.Witness{Nodes: map[replica.NodeName]replica.Node{"n2": {Name: "n2", Incarnation: 22, Addr: silence}}, Idle: true}}
		p := newWasteProber(w, nil)
		p.interval = 200 * time.Millisecond
		within := func(end time.Duration, least, most int) {
			t.Helper()
			before := w.asked
			ctx, cancel := context.WithTimeout(t.Context(), end)
			defer cancel()
			p.run(ctx)
			if n := w.asked - before; n < least || n > most {
				t.Errorf("%d rounds within %v, want %d to %d", n, end, least, most)
			}
		}
		within(31*time.Second, 25, 31) // each takes 0.2 s more, until the probe is given up
		if since := p.peers["n2"].silentSince; time.Since(since) < 20*time.Second {
			t.Errorf("silent since %v: a round took the one before for late", since)
		}
		w.seen.Idle = false
		within(31*time.Second, 70, 155)
	})
}

// A daemon that stood still itself has heard nobody meanwhile, and is no witness of anybody's silence.
func TestADaemonThatStoodStillIsNoWitness(t *testing.T) {
	for what, still := range map[string]time.Duration{"it ran all the time": 0, "it has just been continued": time.Minute} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := &witnessed{seen: host.Witness{Nodes: map[replica.NodeName]replica.Node{"n2": {Name: "n2", Incarnation: 22, Addr: silence}}}}
				p := newWasteProber(w, nil)
				p.silent, p.gossip = time.Second, book{{Name: "n2"}}
				p.last, p.peers = time.Now().Add(-still), map[replica.NodeName]peerState{"n2": {incarnation: 22, silentSince: time.Now().Add(-time.Minute)}}
				p.round(t.Context())
				if (len(w.said) == 1) != (still == 0) {
					t.Errorf("says %+v", w.said)
				}
			})
		})
	}
}
