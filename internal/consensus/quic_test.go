package consensus

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// quicLayer carries raft's streams over an endpoint: one connection to each voter, kept until it ends.
type quicLayer struct {
	ep   *endpoint.Endpoint
	in   chan net.Conn
	life context.Context
	end  context.CancelFunc

	mu    sync.Mutex // guards conns
	conns map[string]*endpoint.Conn
}

func newQUICLayer(ep *endpoint.Endpoint) *quicLayer {
	l := &quicLayer{ep: ep, in: make(chan net.Conn), conns: make(map[string]*endpoint.Conn)}
	l.life, l.end = context.WithCancel(context.Background())
	ep.Handle(endpoint.Raft, func(ctx context.Context, c *endpoint.Conn) {
		for {
			s, err := c.Accept(ctx)
			if err != nil {
				return
			}
			select {
			case l.in <- s:
			case <-l.life.Done():
				s.Close()
				return
			}
		}
	})
	return l
}

func (l *quicLayer) Dial(ctx context.Context, addr string, name replica.NodeName) (net.Conn, error) {
	l.mu.Lock()
	c := l.conns[addr]
	l.mu.Unlock()
	if c == nil || c.Err() != nil {
		var err error
		if c, err = l.ep.Dial(ctx, addr, name, endpoint.Raft); err != nil {
			return nil, err
		}
		l.mu.Lock()
		l.conns[addr] = c
		l.mu.Unlock()
	}
	return c.Open(ctx)
}

func (l *quicLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.in:
		return c, nil
	case <-l.life.Done():
		return nil, net.ErrClosed
	}
}

func (l *quicLayer) Close() error   { l.end(); return nil }
func (l *quicLayer) Addr() net.Addr { return l.ep.Addr() }

// newQUICTrio is a trio over real endpoints, in real time: a machine without time takes long over a vote.
func newQUICTrio(t testing.TB) *trio {
	c := newTrio(t)
	c.tune = func(cfg *Config) {
		cfg.Heartbeat, cfg.Election, cfg.Lease = 2*time.Second, 2*time.Second, 2*time.Second
	}
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, c.names, time.Now()); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	addrs, layers := make(map[replica.NodeName]string), make(map[replica.NodeName]*quicLayer)
	listen := func(name replica.NodeName, addr string) {
		id, err := pki.Load(at("ca.pem"), at(string(name)+".pem"), at(string(name)+"-key.pem"), at("gossip.key"))
		if err != nil {
			t.Fatal(err)
		}
		ep, err := endpoint.Listen(endpoint.Config{
			Addr: addr, ServerTLS: id.ServerTLS(string(endpoint.Raft)), ClientTLS: id.ClientTLS, PeerName: pki.PeerName,
			ProbeKeys: id.GossipKeys, ResetKey: [32]byte{byte(slices.Index(c.names, name) + 1)},
		})
		if err != nil {
			t.Fatal(err)
		}
		layers[name], addrs[name] = newQUICLayer(ep), ep.Addr().String()
		done := make(chan error, 1)
		go func() { done <- ep.Run(context.Background()) }()
		t.Cleanup(func() {
			c.stopAll() // before their endpoints
			if err := errors.Join(ep.Close(), <-done); err != nil {
				t.Errorf("endpoint of %s: %v", name, err)
			}
		})
	}
	for i, name := range c.names {
		listen(name, []string{"127.0.0.1:0", "127.0.0.2:0", "127.0.0.3:0"}[i])
	}
	c.addr = func(name replica.NodeName) string { return addrs[name] }
	c.layer = func(name replica.NodeName) StreamLayer { return layers[name] }
	return c
}

func TestOverEndpoints(t *testing.T) {
	c := newQUICTrio(t).startAll(true)
	c.propose("w1")
	c.awaitNode("w1")
	old := c.leader("").cfg.ID
	c.stop(old)
	c.leader(old)
	c.propose("w2")
	c.awaitNode("w2")
}

// BenchmarkPropose is a proposal through three voters on one machine: real endpoints, real disk.
func BenchmarkPropose(b *testing.B) {
	c := newQUICTrio(b).startAll(true)
	c.propose("w")
	lead := c.leader("")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var took []time.Duration
	session := replica.Session(2)
	for b.Loop() {
		start := time.Now()
		_, out, err := lead.Propose(ctx, replica.RegisterNode{Node: replica.Node{Name: "w", Incarnation: 1, Session: session, Addr: "127.0.0.1:1"}})
		if err != nil || out.Err != nil {
			b.Fatal(err, out.Err)
		}
		took = append(took, time.Since(start))
		session++
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
	b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
}
