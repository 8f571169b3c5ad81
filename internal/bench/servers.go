package bench

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

const loopback = "127.0.0.1:0"

// identities are the files of nodes that trust each other.
type identities struct{ dir string }

func newIdentities(dir string, nodes ...replica.NodeName) (identities, error) {
	return identities{dir}, pki.Init(dir, nodes, time.Now())
}

func (ids identities) load(name replica.NodeName) (*pki.Identity, error) {
	at := func(file string) string { return filepath.Join(ids.dir, file) }
	return pki.Load(at("ca.pem"), at(string(name)+".pem"), at(string(name)+"-key.pem"), at("gossip.key"))
}

// node is a daemon's endpoint that serves one part.
type node struct {
	name replica.NodeName
	*endpoint.Endpoint
	wg sync.WaitGroup
}

// start binds a node's endpoint. Each connection goes through wrap before the part is served on it; nil: as it is.
func (ids identities) start(name replica.NodeName, p *part, wrap func(net.Conn) net.Conn) (*node, error) {
	if wrap == nil {
		wrap = func(c net.Conn) net.Conn { return c }
	}
	id, err := ids.load(name)
	if err != nil {
		return nil, err
	}
	e, err := endpoint.Listen(endpoint.Config{Addr: loopback, ServerTLS: id.ServerTLS(string(endpoint.Bulk)), ClientTLS: id.ClientTLS,
		PeerName: pki.PeerName, ProbeKeys: id.GossipKeys, ResetKey: [32]byte([]byte(string(name) + "................................")[:32]), Logf: func(string, ...any) {}})
	if err != nil {
		return nil, err
	}
	e.Handle(endpoint.Bulk, func(ctx context.Context, c *endpoint.Conn) {
		var wg sync.WaitGroup
		defer wg.Wait()
		for {
			s, err := c.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() { _ = transfer.Serve(ctx, c.Peer(), wrap(s), p, nil) }) // the receiver's report says what went wrong
		}
	})
	e.HandleTCP(func(ctx context.Context, c *endpoint.TCPConn) { _ = transfer.Serve(ctx, c.Peer(), wrap(c), p, nil) })
	n := &node{name: name, Endpoint: e}
	n.wg.Go(func() { _ = e.Run(context.Background()) }) // until stop
	return n, nil
}

func (n *node) stop() { _ = n.Close(); n.wg.Wait() }

// lane opens streams with a function.
type lane struct {
	peer  replica.NodeName
	open  func(context.Context) (net.Conn, error)
	close func()
}

func (l lane) Open(ctx context.Context) (net.Conn, error) { return l.open(ctx) }
func (l lane) Peer() replica.NodeName                     { return l.peer }
func (l lane) Close()                                     { l.close() }

// overTLS is a source whose lane is a connection over TLS and TCP to n.
func (n *node) overTLS(receiver *node) transfer.Source {
	return transfer.Source{Node: n.name, Over: transfer.TCP, Dial: func(context.Context) (transfer.Lane, error) {
		return lane{n.name, func(ctx context.Context) (net.Conn, error) {
			c, err := receiver.DialTCP(ctx, n.Addr().String(), n.name)
			if err != nil {
				return nil, err // not a nil *TCPConn in an interface
			}
			return c, nil
		}, func() {}}, nil
	}}
}

// overQUIC is a source whose lane is a connection over QUIC to n.
func (n *node) overQUIC(receiver *node) transfer.Source {
	return transfer.Source{Node: n.name, Over: transfer.QUIC, Dial: func(ctx context.Context) (transfer.Lane, error) {
		c, err := receiver.Dial(ctx, n.Addr().String(), n.name, endpoint.Bulk)
		if err != nil {
			return nil, err
		}
		return lane{n.name, func(ctx context.Context) (net.Conn, error) {
			s, err := c.Open(ctx)
			if err != nil {
				return nil, err
			}
			return s, nil
		}, func() { c.Close("done") }}, nil
	}}
}

// overPlain is a source whose lane is a plain connection to addr.
func overPlain(name replica.NodeName, addr string) transfer.Source {
	return transfer.Source{Node: name, Over: transfer.TCP, Dial: func(context.Context) (transfer.Lane, error) {
		return lane{name, func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) }, func() {}}, nil
	}}
}

// listener accepts connections and serves each in a goroutine of its own.
type listener struct {
	net.Listener
	wg sync.WaitGroup
}

// listen serves until stop is called, which waits for all connections to end by themselves.
func listen(ln net.Listener, serve func(net.Conn)) *listener {
	l := &listener{Listener: ln}
	l.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { serve(c) })
		}
	})
	return l
}

func (l *listener) stop() { _ = l.Close(); l.wg.Wait() }
