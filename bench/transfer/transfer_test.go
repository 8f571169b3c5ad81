package transfer_test

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

const size = 256 << 20

// part is the whole in memory: store, reader and sink.
type part struct {
	m   replica.Manifest
	b   []byte
	got []byte
}

func newPart(b testing.TB) (*part, transfer.Key) {
	b.Helper()
	bytes := make([]byte, size)
	if _, err := rand.Read(bytes); err != nil {
		b.Fatal(err)
	}
	m := replica.Manifest{Job: replica.JobID{1}, Generation: replica.Generation{Epoch: 1, Step: 1}, Bytes: size, ChunkBytes: replica.DefaultChunkBytes}
	for i := range replica.ChunkCount(m.Bytes, m.ChunkBytes) {
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		m.Chunks = append(m.Chunks, xxh3.Hash128(bytes[off:off+n]).Bytes())
	}
	m.Root = xxh3.Hash128(m.RootInput()).Bytes()
	return &part{m, bytes, make([]byte, size)}, transfer.Key{Job: m.Job, Generation: m.Generation, Root: m.Root}
}

func (p *part) Open(replica.NodeName, transfer.Key) (transfer.Reader, error) { return p, nil }
func (p *part) Accept(replica.NodeName, transfer.Key, replica.Manifest) (transfer.Sink, func(error) error, error) {
	return nil, nil, transfer.ErrRefused
}
func (p *part) Manifest() replica.Manifest { return p.m }
func (p *part) Close()                     {}
func (p *part) Have(int) bool              { return false }
func (p *part) ReadChunk(i int, dst []byte) ([]byte, error) {
	off, n := replica.ChunkSpan(i, p.m.Bytes, p.m.ChunkBytes)
	return dst[:copy(dst, p.b[off:off+n])], nil
}
func (p *part) Put(i int, b []byte) error {
	off, _ := replica.ChunkSpan(i, p.m.Bytes, p.m.ChunkBytes)
	copy(p.got[off:], b)
	return nil
}

// lane opens streams with a function.
type lane struct {
	open  func(context.Context) (net.Conn, error)
	close func()
}

func (l lane) Open(ctx context.Context) (net.Conn, error) { return l.open(ctx) }
func (l lane) Peer() replica.NodeName                     { return "source" }
func (l lane) Close()                                     { l.close() }

func fetch(b *testing.B, p *part, k transfer.Key, dial func(context.Context) (transfer.Lane, error), lanes int) {
	b.Helper()
	b.SetBytes(size)
	b.ReportAllocs()
	sources := make([]transfer.Source, lanes)
	for i := range sources {
		sources[i] = transfer.Source{Node: "source", Dial: dial}
	}
	for b.Loop() {
		rep, err := transfer.Fetch(b.Context(), k, sources, func(replica.Manifest) (transfer.Sink, error) { return p, nil })
		if err != nil || rep.Bytes != size {
			b.Fatalf("%+v, %v", rep, err)
		}
	}
}

func BenchmarkPipe(b *testing.B) {
	p, k := newPart(b)
	var wg sync.WaitGroup
	defer wg.Wait()
	fetch(b, p, k, func(context.Context) (transfer.Lane, error) {
		return lane{func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			wg.Go(func() { _ = transfer.Serve(context.Background(), "peer", there, p, nil) })
			return here, nil
		}, func() {}}, nil
	}, 1)
}

func BenchmarkTCP(b *testing.B) {
	for name, lanes := range map[string]int{"1": 1, "2": 2} {
		b.Run(name, func(b *testing.B) {
			p, k := newPart(b)
			addr, stop := serveTCP(b, func(c net.Conn) { _ = transfer.Serve(context.Background(), "peer", c, p, nil) })
			defer stop()
			fetch(b, p, k, func(context.Context) (transfer.Lane, error) {
				return lane{func(ctx context.Context) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", addr)
				}, func() {}}, nil
			}, lanes)
		})
	}
}

// BenchmarkPlainTCP is the yardstick: 1 MiB writes, read into place, nothing checked.
func BenchmarkPlainTCP(b *testing.B) {
	p, _ := newPart(b)
	addr, stop := serveTCP(b, func(c net.Conn) {
		defer c.Close()
		for off := 0; off < size; off += 1 << 20 {
			if _, err := c.Write(p.b[off : off+1<<20]); err != nil {
				return
			}
		}
	})
	defer stop()
	b.SetBytes(size)
	for b.Loop() {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, p.got); err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

// BenchmarkTLS moves over the daemons' own TCP connections.
func BenchmarkTLS(b *testing.B) {
	p, k, source, receiver := twoEndpoints(b)
	dial := func(context.Context) (transfer.Lane, error) {
		return lane{func(ctx context.Context) (net.Conn, error) {
			c, err := receiver.DialTCP(ctx, source.Addr().String(), "source")
			if err != nil {
				return nil, err
			}
			return c, nil
		}, func() {}}, nil
	}
	for _, lanes := range []int{1, 2, 4} {
		b.Run(strconv.Itoa(lanes), func(b *testing.B) { fetch(b, p, k, dial, lanes) })
	}
}

func twoEndpoints(b *testing.B) (*part, transfer.Key, *endpoint.Endpoint, *endpoint.Endpoint) {
	b.Helper()
	dir := filepath.Join(b.TempDir(), "pki")
	if err := pki.Init(dir, []replica.NodeName{"source", "receiver"}, time.Now()); err != nil {
		b.Fatal(err)
	}
	p, k := newPart(b)
	return p, k, startEndpoint(b, dir, "source", p), startEndpoint(b, dir, "receiver", p)
}

func BenchmarkQUIC(b *testing.B) {
	p, k, source, receiver := twoEndpoints(b)
	dial := func(ctx context.Context) (transfer.Lane, error) {
		c, err := receiver.Dial(ctx, source.Addr().String(), "source", endpoint.Bulk)
		if err != nil {
			return nil, err
		}
		return lane{func(ctx context.Context) (net.Conn, error) {
			s, err := c.Open(ctx)
			if err != nil {
				return nil, err
			}
			return s, nil
		}, func() { c.Close("done") }}, nil
	}
	for name, lanes := range map[string]int{"1": 1, "2": 2} {
		b.Run(name, func(b *testing.B) { fetch(b, p, k, dial, lanes) })
	}
}

func serveTCP(b *testing.B, serve func(net.Conn)) (addr string, stop func()) {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(c) })
		}
	})
	return ln.Addr().String(), func() { ln.Close(); wg.Wait() }
}

func startEndpoint(b *testing.B, dir string, name replica.NodeName, st transfer.Store) *endpoint.Endpoint {
	b.Helper()
	at := func(f string) string { return filepath.Join(dir, f) }
	id, err := pki.Load(at("ca.pem"), at(string(name)+".pem"), at(string(name)+"-key.pem"), at("gossip.key"))
	if err != nil {
		b.Fatal(err)
	}
	e, err := endpoint.Listen(endpoint.Config{Addr: "127.0.0.1:0", ServerTLS: id.ServerTLS(string(endpoint.Bulk)), ClientTLS: id.ClientTLS,
		PeerName: pki.PeerName, ProbeKeys: id.GossipKeys, ResetKey: [32]byte{name[0]}, Logf: func(string, ...any) {}})
	if err != nil {
		b.Fatal(err)
	}
	e.Handle(endpoint.Bulk, func(ctx context.Context, c *endpoint.Conn) {
		var wg sync.WaitGroup
		defer wg.Wait()
		for {
			s, err := c.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() { _ = transfer.Serve(ctx, c.Peer(), s, st, nil) })
		}
	})
	e.HandleTCP(func(ctx context.Context, c *endpoint.TCPConn) { _ = transfer.Serve(ctx, c.Peer(), c, st, nil) })
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Run(context.Background()) })
	b.Cleanup(func() { e.Close(); wg.Wait() })
	return e
}
