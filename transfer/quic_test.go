package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// node is an endpoint that serves a store to its bulk connections.
type node struct {
	*endpoint.Endpoint
	name replica.NodeName
}

func startNode(t *testing.T, dir string, name replica.NodeName, st transfer.Store) *node {
	t.Helper()
	at := func(f string) string { return filepath.Join(dir, f) }
	id, err := pki.Load(at("ca.pem"), at(string(name)+".pem"), at(string(name)+"-key.pem"), at("gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := endpoint.Listen(endpoint.Config{Addr: "127.0.0.1:0", ServerTLS: id.ServerTLS(string(endpoint.Bulk)), ClientTLS: id.ClientTLS,
		PeerName: pki.PeerName, ProbeKeys: id.GossipKeys, ResetKey: [32]byte{name[0]}, Logf: func(string, ...any) {}})
	if err != nil {
		t.Fatal(err)
	}
	e.Handle(endpoint.Bulk, func(ctx context.Context, c *endpoint.Conn) {
		var wg sync.WaitGroup
		defer wg.Wait()
		for {
			s, err := c.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() { _ = transfer.Serve(ctx, c.Peer(), s, st, nil) }) // what it returns is for a log
		}
	})
	done := make(chan error, 1)
	go func() { done <- e.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil && !errors.Is(err, endpoint.ErrClosed) {
			t.Error(err)
		}
	})
	return &node{e, name}
}

// lane is a bulk connection.
type lane struct{ c *endpoint.Conn }

func (l lane) Open(ctx context.Context) (net.Conn, error) {
	s, err := l.c.Open(ctx)
	if err != nil {
		return nil, err
	}
	return s, nil
}
func (l lane) Peer() replica.NodeName { return l.c.Peer() }
func (l lane) Close()                 { l.c.Close("done") }

func (n *node) dial(to *node) func(ctx context.Context) (transfer.Lane, error) {
	return func(ctx context.Context) (transfer.Lane, error) {
		c, err := n.Dial(ctx, to.Addr().String(), to.name, endpoint.Bulk)
		if err != nil {
			return nil, err
		}
		return lane{c}, nil
	}
}

// part is a store that holds one part, and takes it.
type part struct {
	m      replica.Manifest
	b      []byte
	serve  func(i int) error // before chunk i
	got    []byte            // what was pushed and sealed
	sealed chan error        // has room for the end of each push
}

func newPart(size int) (*part, transfer.Key) {
	b := make([]byte, size)
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	m := replica.Manifest{Job: replica.JobID{2}, Part: replica.OfGroup(0), Generation: replica.Generation{Epoch: 1, Step: 5}, Bytes: uint64(size), ChunkBytes: 256 << 10}
	for i := range replica.ChunkCount(m.Bytes, m.ChunkBytes) {
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		m.Chunks = append(m.Chunks, xxh3.Hash128(b[off:off+n]).Bytes())
	}
	m.Root = xxh3.Hash128(m.RootInput()).Bytes()
	return &part{m: m, b: b}, transfer.Key{Job: m.Job, Epoch: 2, Part: m.Part, Generation: m.Generation, Root: m.Root}
}

func (p *part) like() *part { return &part{m: p.m, b: p.b} }

func (p *part) Open(_ replica.NodeName, k transfer.Key) (transfer.Reader, error) {
	if k.Job != p.m.Job || k.Part != p.m.Part || k.Generation != p.m.Generation || k.Root != p.m.Root {
		return nil, transfer.ErrUnknownPart
	}
	return p, nil
}
func (p *part) Manifest() replica.Manifest { return p.m }
func (p *part) Close()                     {}
func (p *part) ReadChunk(i int, dst []byte) ([]byte, error) {
	if p.serve != nil {
		if err := p.serve(i); err != nil {
			return nil, err
		}
	}
	off, n := replica.ChunkSpan(i, p.m.Bytes, p.m.ChunkBytes)
	return dst[:copy(dst, p.b[off:off+n])], nil
}

// Accept takes the part into a sink of its own.
func (p *part) Accept(_ replica.NodeName, _ transfer.Key, m replica.Manifest) (transfer.Sink, func(error) error, error) {
	if m.Root != p.m.Root {
		return nil, nil, transfer.ErrRefused
	}
	s := p.sink()
	return s, func(err error) error {
		if err = s.end(err); err == nil {
			p.got = s.got
		}
		p.sealed <- err
		return err
	}, nil
}

// sink takes a part.
type sink struct {
	m replica.Manifest

	mu    sync.Mutex
	got   []byte
	have  []bool
	ended bool
}

func (p *part) sink() *sink {
	return &sink{m: p.m, got: make([]byte, p.m.Bytes), have: make([]bool, len(p.m.Chunks))}
}

func (s *sink) Have(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have[i]
}

func (s *sink) Put(i int, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || i < 0 || i >= len(s.have) || xxh3.Hash128(b).Bytes() != s.m.Chunks[i] {
		return fmt.Errorf("chunk %d of %d bytes, ended: %t", i, len(b), s.ended)
	}
	off, _ := replica.ChunkSpan(i, s.m.Bytes, s.m.ChunkBytes)
	copy(s.got[off:], b)
	s.have[i] = true
	return nil
}

func (s *sink) end(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if i := slices.Index(s.have, false); err == nil && i >= 0 {
		return fmt.Errorf("sealed without chunk %d", i)
	}
	return err
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestOverQUIC fetches from three nodes, one of which frees the part in mid-transfer and one of which is not there,
// then pushes what arrived to a mirror.
func TestOverQUIC(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, []replica.NodeName{"a", "b", "c", "d"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	whole, k := newPart(6<<20 + 17)
	dying := whole.like()
	a := startNode(t, dir, "a", whole.like())
	b := startNode(t, dir, "b", dying)
	served := make(chan struct{})
	good := whole.like()
	good.serve = func(i int) error { // the good source begins once the other is dead
		<-served
		return nil
	}
	c := startNode(t, dir, "c", good)
	n := 0
	dying.serve = func(int) error {
		if n++; n == 5 {
			close(served)
			return errors.New("the slot was freed")
		}
		return nil
	}
	gone := transfer.Source{Node: "gone", Dial: func(ctx context.Context) (transfer.Lane, error) {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		addr := conn.LocalAddr().String()
		conn.Close()
		l, err := a.Dial(ctx, addr, "d", endpoint.Bulk)
		if err != nil {
			return nil, err
		}
		return lane{l}, nil
	}}
	sink := whole.sink()
	rep, err := transfer.Fetch(within(t), k, []transfer.Source{{Node: "b", Dial: a.dial(b)}, {Node: "c", Dial: a.dial(c)}, gone}, func(replica.Manifest) (transfer.Sink, error) {
		return sink, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sink.got, whole.b) || rep.Bytes != whole.m.Bytes || rep.By["b"] != 4*256<<10 || rep.Failed["b"] == "" {
		t.Fatalf("report %+v", rep)
	}
	if _, received := a.Moved(); received < whole.m.Bytes {
		t.Errorf("the endpoint counts %d bytes received", received)
	}

	mirror := whole.like()
	mirror.sealed = make(chan error, 1)
	d := startNode(t, dir, "d", mirror)
	l, err := a.dial(d)(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := transfer.Push(within(t), l, k, whole, transfer.Turns{}); err != nil {
		t.Fatal(err)
	}
	if err := <-mirror.sealed; err != nil || !bytes.Equal(mirror.got, whole.b) {
		t.Fatalf("the mirror sealed with %v", err)
	}
}
