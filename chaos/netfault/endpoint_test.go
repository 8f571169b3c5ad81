package netfault

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// endpoints starts two daemons' ports; the returned function starts the second one again.
func endpoints(t testing.TB, nodes []Node) (a, b *endpoint.Endpoint, again func() *endpoint.Endpoint) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	do(t, pki.Init(dir, []replica.NodeName{"a", "b"}, time.Now()))
	listen := func(node Node) *endpoint.Endpoint {
		id, err := pki.Load(filepath.Join(dir, "ca.pem"), filepath.Join(dir, node.Name+".pem"), filepath.Join(dir, node.Name+"-key.pem"), filepath.Join(dir, "gossip.key"))
		do(t, err)
		e, err := endpoint.Listen(endpoint.Config{Addr: node.Listen, ServerTLS: id.ServerTLS(string(endpoint.Bulk)), ClientTLS: id.ClientTLS, PeerName: pki.PeerName,
			ProbeKeys: id.GossipKeys, ResetKey: sha256.Sum256([]byte(node.Name))})
		do(t, err)
		e.SetProbeReply(endpoint.ProbeReply{Node: replica.NodeName(node.Name)})
		e.Handle(endpoint.Bulk, func(ctx context.Context, c *endpoint.Conn) { // sends back the digest of what it is sent
			for {
				s, err := c.Accept(ctx)
				if err != nil {
					return
				}
				h := sha256.New()
				if _, err := io.Copy(h, s); err == nil {
					_, _ = s.Write(h.Sum(nil)) // its loss is seen at the other end
				}
				_ = s.Close()
			}
		})
		var run sync.WaitGroup
		run.Go(func() {
			if err := e.Run(context.Background()); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(func() { e.Close(); run.Wait() })
		return e
	}
	return listen(nodes[0]), listen(nodes[1]), func() *endpoint.Endpoint { return listen(nodes[1]) }
}

// bulk sends state to b under the address.
func bulk(ctx context.Context, a *endpoint.Endpoint, addr string, state []byte) error {
	c, err := a.Dial(ctx, addr, "b", endpoint.Bulk)
	if err != nil {
		return err
	}
	defer c.Close("done")
	s, err := c.Open(ctx)
	if err != nil {
		return err
	}
	if _, err = s.Write(state); err == nil {
		err = s.CloseWrite()
	}
	if err != nil {
		return err
	}
	digest, err := io.ReadAll(s)
	if want := sha256.Sum256(state); err == nil && !bytes.Equal(digest, want[:]) {
		err = errors.New("its digest is another")
	}
	return err
}

// TestEndpoints: what a daemon concludes from a cut, a dead daemon and a dead node is what it would without the proxy.
func TestEndpoints(t *testing.T) {
	nodes := newNodes(t, "a", "b")
	n := start(t, 1, nodes)
	a, b, again := endpoints(t, nodes)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	state := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	do(t, bulk(ctx, a, nodes[1].Addr, state))
	if _, err := a.Probe(ctx, nodes[1].Addr); err != nil {
		t.Error(err)
	}
	do(t, n.Shape("a", "b", 0.02, time.Millisecond, time.Millisecond))
	do(t, bulk(ctx, a, nodes[1].Addr, state))
	n.Heal()

	probe := func() error {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := a.Probe(short, nodes[1].Addr)
		return err
	}
	do(t, n.CutOneWay("b", "a"))
	if err := probe(); !errors.Is(err, endpoint.ErrSilent) {
		t.Errorf("across a cut: %v", err)
	}
	n.Heal()
	do(t, b.Close())
	if _, err := a.Probe(ctx, nodes[1].Addr); !errors.Is(err, endpoint.ErrRefused) {
		t.Errorf("a daemon that is gone: %v", err)
	}
	do(t, n.Isolate("b"))
	until(t, "the isolated node is silent", func() bool { return errors.Is(probe(), endpoint.ErrSilent) })
	n.Heal()
	again()
	until(t, "b is back", func() bool { return probe() == nil })
	do(t, bulk(ctx, a, nodes[1].Addr, state))
}

// BenchmarkBulk says what the proxy costs state streams.
func BenchmarkBulk(b *testing.B) {
	for name, addr := range map[string]func(Node) string{"direct": func(n Node) string { return n.Listen }, "proxied": func(n Node) string { return n.Addr }} {
		b.Run(name, func(b *testing.B) {
			nodes := newNodes(b, "a", "b")
			start(b, 1, nodes)
			from, _, _ := endpoints(b, nodes)
			state := make([]byte, 128<<20)
			b.SetBytes(int64(len(state)))
			for b.Loop() {
				do(b, bulk(context.Background(), from, addr(nodes[1]), state))
			}
		})
	}
}
