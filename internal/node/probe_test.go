package node

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

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
	seen host.Witness
	said []control.Suspect
}

func (w *witnessed) Witness(context.Context) (host.Witness, bool) { return w.seen, true }

func (w *witnessed) Suspect(_ context.Context, s []control.Suspect) { w.said = append(w.said, s...) }

func newProber(t *testing.T, w *witnessed) *prober {
	return &prober{host: w, path: port(t), paths: newPaths(time.Second), gossip: book{}, silent: time.Hour, peers: map[replica.NodeName]peerState{}}
}

// What a probe meets, one after the other, and what the node counts as after it.
func TestProbeStates(t *testing.T) {
	p, h := newProber(t, nil), newHost(t)
	probe := func(addr string, inc replica.NodeIncarnation) {
		p.interval = h.patienceWith(addr)
		p.probe(t.Context(), "n2", replica.Node{Name: "n2", Addr: addr, Incarnation: inc})
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

// The leader is told of a node that gossip gave up and whose data path has been silent for long enough, and of no other.
func TestSuspicionIsSpoken(t *testing.T) {
	w := &witnessed{}
	p, h := newProber(t, w), newHost(t)
	other := port(t)
	other.SetProbeReply(endpoint.ProbeReply{Node: "n2", Incarnation: 21})
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
	for what, c := range map[string]struct {
		addr   string
		gossip book
		silent time.Duration
		rounds int
		want   int
		grace  time.Duration // for which its host speaks for its daemon
	}{
		"silent, and gossip gave it up":          {h.silent, gone("n2"), 0, 1, 1, 0},
		"said again each round":                  {h.silent, gone("n2"), 0, 3, 3, 0},
		"silent, gossip sees it":                 {h.silent, gone("n3"), 0, 2, 0, 0},
		"silent, gossip sees another life of it": {h.silent, book{{Name: "n2", Incarnation: 21, Alive: true}}, 0, 2, 2, 0},
		"another life of it answers":             {other.Addr().String(), book{{Name: "n2", Incarnation: 21, Alive: true}}, 0, 2, 2, 0},
		"silent, gossip knows nothing":           {h.silent, nil, 0, 2, 0, 0},
		"not silent for long":                    {h.silent, gone("n2"), time.Hour, 2, 0, 0},
		"its daemon is down":                     {h.closed, gone("n2"), 0, 2, 0, 0},
		"its daemon is stopped":                  {h.silent, at(stopped.Addr().String()), 0, 2, 0, time.Hour},
		"and for good":                           {h.silent, at(stopped.Addr().String()), 0, 2, 2, 0},
		"no port, but a host":                    {h.silent, at(nobody.Addr().String()), 0, 2, 0, time.Hour},
		"it answers":                             {h.Addr().String(), gone("n2"), 0, 2, 0, 0},
	} {
		h.SetProbeReply(endpoint.ProbeReply{Node: "n2", Incarnation: 22})
		w.said, w.seen = nil, host.Witness{Nodes: map[replica.NodeName]replica.Node{"n2": {Name: "n2", Incarnation: 22, Addr: c.addr}}, Live: map[replica.JobID]replica.Step{fixture.JobID: 7}}
		p.interval = h.patienceWith(c.addr)
		p.gossip, p.silent, p.grace, p.peers = c.gossip, c.silent, c.grace, map[replica.NodeName]peerState{}
		p.last = time.Time{}
		for range c.rounds {
			p.round(t.Context())
		}
		said := w.said
		if len(said) != c.want {
			t.Errorf("%s: said %+v, want %d", what, said, c.want)
		}
		for _, s := range said {
			if s.Target != silentPeer || len(s.Live) != 1 || s.Live[fixture.JobID] != 7 {
				t.Errorf("%s: said %+v", what, s)
			}
		}
	}
}

// A daemon that stood still itself has heard nobody meanwhile, and is no witness of anybody's silence.
func TestADaemonThatStoodStillIsNoWitness(t *testing.T) {
	w := &witnessed{seen: host.Witness{Nodes: map[replica.NodeName]replica.Node{"n2": {Name: "n2", Incarnation: 22}}}}
	p, h := newProber(t, w), newHost(t)
	p.interval, p.silent, p.gossip = h.patienceWith(h.silent), time.Second, book{{Name: "n2"}}
	w.seen.Nodes["n2"] = replica.Node{Name: "n2", Incarnation: 22, Addr: h.silent}
	long := time.Now().Add(-time.Minute)
	for what, last := range map[string]time.Time{"it ran all the time": time.Now(), "it has just been continued": long} {
		p.last, p.peers = last, map[replica.NodeName]peerState{"n2": {incarnation: 22, silentSince: long}}
		p.round(t.Context())
		if said := w.said; (len(said) == 1) != (last != long) {
			t.Errorf("%s, and says %+v", what, said)
		}
		w.said = nil
	}
}
