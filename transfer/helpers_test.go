package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// makePart makes a part of n seeded bytes in chunks of chunk bytes.
func makePart(n int, chunk uint32) (Key, replica.Manifest, []byte) {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	m := replica.Manifest{Cluster: replica.ClusterID{1}, Era: 1, Job: replica.JobID{2}, Part: replica.OfGroup(1),
		Generation: replica.Generation{Epoch: 3, Step: 40}, Geometry: replica.Digest{9}, Bytes: uint64(n), ChunkBytes: chunk}
	m.Chunks = make([]replica.Digest, replica.ChunkCount(m.Bytes, chunk))
	for i := range m.Chunks {
		off, n := replica.ChunkSpan(i, m.Bytes, chunk)
		m.Chunks[i] = hash(b[off : off+n])
	}
	m.Root = hash(m.RootInput())
	return Key{Cluster: m.Cluster, Era: 1, Job: m.Job, Epoch: 4, Part: m.Part, Generation: m.Generation, Root: m.Root, Rank: 1, Incarnation: 7}, m, b
}

// memStore serves one part; its hooks are nil or make it fail. It compares keys with the part, and leaves whose they are to the hooks.
type memStore struct {
	m     replica.Manifest
	b     []byte
	open  func() error      // before anything else
	chunk func(i int) error // before chunk i is read
	bend  func(i int, b []byte)

	of   *memSink // serves what that has got
	lies bool     // serves its part by any key

	mirror  *memSink // what a push goes into
	accept  func() error
	sealErr func(error) error

	readers, filled atomic.Int32 // that were opened, and accepted, and have no end yet
}

func (s *memStore) Open(_ replica.NodeName, k Key) (Reader, error) {
	if s.open != nil {
		if err := s.open(); err != nil {
			return nil, err
		}
	}
	if !s.lies && !named(k, s.m) {
		return nil, ErrUnknownPart
	}
	s.readers.Add(1)
	if s.of != nil {
		return &receiving{memReader{s, s.of.b}, s.of}, nil
	}
	return &memReader{s, s.b}, nil
}

// named is true where a key is that of a part. Frozen parts go by any generation.
func named(k Key, m replica.Manifest) bool {
	generation := k.Generation == m.Generation || k.Part.Kind == replica.FrozenPart
	return generation && k.Cluster == m.Cluster && k.Job == m.Job && k.Part == m.Part && k.Root == m.Root
}

// receiving reads what a sink has got so far.
type receiving struct {
	memReader
	of *memSink
}

func (r *receiving) Has(i int) bool { return r.of.Have(i) }

func (s *memStore) Accept(_ replica.NodeName, _ Key, m replica.Manifest) (Sink, func(error) error, error) {
	if s.accept != nil {
		if err := s.accept(); err != nil {
			return nil, nil, err
		}
	}
	if s.mirror == nil || m.Root != s.mirror.m.Root {
		return nil, nil, ErrRefused
	}
	s.filled.Add(1)
	sink := &endingSink{memSink: s.mirror}
	return sink, func(err error) error {
		defer s.filled.Add(-1)
		sink.end()
		s.mirror.ended = append(s.mirror.ended, err)
		if err == nil && s.sealErr != nil {
			err = s.sealErr(err)
		}
		return s.mirror.seal(err)
	}, nil
}

// inUse names what has no end yet.
func (s *memStore) inUse() []string {
	return append(slices.Repeat([]string{"reader"}, int(s.readers.Load())), slices.Repeat([]string{"place"}, int(s.filled.Load()))...)
}

// endingSink is the sink of one push: it takes nothing once that has ended.
type endingSink struct {
	*memSink
	over bool // guarded by its mu
}

func (s *endingSink) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

func (s *endingSink) Put(i int, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return errors.New("the push has ended")
	}
	return s.put(i, b)
}

type memReader struct {
	s *memStore
	b []byte
}

// reads reads a part's bytes.
func reads(s *memStore) *memReader { return &memReader{s, s.b} }

func (r *memReader) Manifest() replica.Manifest { return r.s.m }
func (r *memReader) Close()                     { r.s.readers.Add(-1) }
func (r *memReader) ReadChunk(i int, dst []byte) ([]byte, error) {
	if r.s.chunk != nil {
		if err := r.s.chunk(i); err != nil {
			return nil, err
		}
	}
	off, n := replica.ChunkSpan(i, r.s.m.Bytes, r.s.m.ChunkBytes)
	copy(dst, r.b[off:off+n])
	if r.s.bend != nil {
		r.s.bend(i, dst[:n])
	}
	return dst[:n], nil
}

// memSink takes chunks; it fails the test when one is put twice or wrong, or the part is sealed without one.
type memSink struct {
	t    testing.TB // nil: what is wrong is refused, and the test goes on
	m    replica.Manifest
	mu   sync.Mutex
	b    []byte
	have []bool
	puts int
	err  func(i int) error

	twice bool // a chunk may come twice

	ended  []error // calls of a push's finish
	sealed bool
}

func newSink(t testing.TB, m replica.Manifest) *memSink {
	return &memSink{t: t, m: m, b: make([]byte, m.Bytes), have: make([]bool, len(m.Chunks))}
}

func (s *memSink) Have(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have[i]
}

func (s *memSink) Put(i int, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(i, b)
}

// wrong is a breach of the transfer's.
func (s *memSink) wrong(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if s.t != nil {
		s.t.Error(err)
	}
	return err
}

// put is Put; mu is held.
func (s *memSink) put(i int, b []byte) error {
	if s.err != nil {
		if err := s.err(i); err != nil {
			return err
		}
	}
	if i < 0 || i >= len(s.have) || hash(b) != s.m.Chunks[i] || s.have[i] && !s.twice {
		return s.wrong("chunk %d was put twice or wrong", i)
	}
	if s.have[i] {
		return nil
	}
	off, _ := replica.ChunkSpan(i, s.m.Bytes, s.m.ChunkBytes)
	copy(s.b[off:], b)
	s.have[i] = true
	s.puts++
	return nil
}

// seal ends a push.
func (s *memSink) seal(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.have, false); err == nil && i >= 0 {
		err = s.wrong("sealed without chunk %d", i)
	}
	s.sealed = s.sealed || err == nil
	return err
}

func (s *memSink) check(want []byte) {
	s.t.Helper()
	if string(s.b) != string(want) {
		s.t.Error("the part that arrived is not the one that was sent")
	}
}

func (s *memSink) begin(m replica.Manifest) (Sink, error) {
	if m.Root != s.m.Root {
		return nil, errors.New("another part")
	}
	return s, nil
}

// pipeLane serves each stream it opens from a store over a net.Pipe; wrap may bend the server's end.
type pipeLane struct {
	peer replica.NodeName
	st   Store
	wrap func(net.Conn) net.Conn
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

func newPipeLane(peer replica.NodeName, st Store, wrap func(net.Conn) net.Conn) *pipeLane {
	l := &pipeLane{peer: peer, st: st, wrap: wrap}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

func (l *pipeLane) Open(context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	if l.wrap != nil {
		there = l.wrap(there)
	}
	l.wg.Go(func() { _ = Serve(l.ctx, "receiver", there, l.st, nil) }) // what it returns is for a log
	return here, nil
}

func (l *pipeLane) Peer() replica.NodeName { return l.peer }
func (l *pipeLane) Close()                 { l.stop(); l.wg.Wait() }

func source(name replica.NodeName, st Store) Source { return bentSource(name, st, nil) }

func bentSource(name replica.NodeName, st Store, wrap func(net.Conn) net.Conn) Source {
	return Source{Node: name, Dial: func(context.Context) (Lane, error) { return newPipeLane(name, st, wrap), nil }}
}

// hungConn swallows what is written after the first limit bytes: nothing arrives any more, and nobody says so.
type hungConn struct {
	net.Conn
	left int
}

func (h *hungConn) Write(b []byte) (int, error) {
	if len(b) > h.left {
		h.left = 0
		return len(b), nil
	}
	h.left -= len(b)
	return h.Conn.Write(b)
}
