package bench

import (
	"crypto/rand"
	"fmt"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// part is a part in memory: what sources read and where a receiver puts it.
type part struct {
	manifest replica.Manifest
	key      transfer.Key
	from, to []byte
}

func newPart(bytes uint64) (*part, error) {
	p := &part{from: make([]byte, bytes), to: make([]byte, bytes)}
	if _, err := rand.Read(p.from); err != nil {
		return nil, fmt.Errorf("a part of %d bytes to transfer: %w", bytes, err)
	}
	m := replica.Manifest{Job: replica.JobID{1}, Generation: replica.Generation{Epoch: 1, Step: 1}, Bytes: bytes, ChunkBytes: replica.DefaultChunkBytes}
	for i := range replica.ChunkCount(m.Bytes, m.ChunkBytes) {
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		m.Chunks = append(m.Chunks, xxh3.Hash128(p.from[off:off+n]).Bytes())
	}
	m.Root = xxh3.Hash128(m.RootInput()).Bytes()
	p.manifest, p.key = m, transfer.Key{Job: m.Job, Generation: m.Generation, Root: m.Root}
	return p, nil
}

func (p *part) bytes() uint64 { return p.manifest.Bytes }

// Open, Accept: a transfer.Store that has this part for everybody and takes none.
func (p *part) Open(_ replica.NodeName, k transfer.Key) (transfer.Reader, error) {
	if k != p.key {
		return nil, transfer.ErrUnknownPart
	}
	return p, nil
}

func (p *part) Accept(replica.NodeName, transfer.Key, replica.Manifest) (transfer.Sink, func(error) error, error) {
	return nil, nil, transfer.ErrRefused
}

// Manifest, ReadChunk, Close: the part's reader.
func (p *part) Manifest() replica.Manifest { return p.manifest }
func (p *part) Close()                     {}

func (p *part) ReadChunk(i int, dst []byte) ([]byte, error) {
	off, n := replica.ChunkSpan(i, p.manifest.Bytes, p.manifest.ChunkBytes)
	return dst[:copy(dst, p.from[off:off+n])], nil
}

// sink takes the part in. It remembers what it has, as a staging slot does for a fetch that begins anew.
type sink struct {
	p    *part
	have []atomic.Bool
	put  atomic.Uint64      // bytes
	seen func(bytes uint64) // called with all that was put so far; nil: nobody
}

func (p *part) sink() *sink { return &sink{p: p, have: make([]atomic.Bool, len(p.manifest.Chunks))} }

func (s *sink) Have(i int) bool { return s.have[i].Load() }

func (s *sink) Put(i int, b []byte) error {
	off, _ := replica.ChunkSpan(i, s.p.manifest.Bytes, s.p.manifest.ChunkBytes)
	copy(s.p.to[off:], b)
	s.have[i].Store(true)
	if all := s.put.Add(uint64(len(b))); s.seen != nil {
		s.seen(all)
	}
	return nil
}

func (s *sink) begin(replica.Manifest) (transfer.Sink, error) { return s, nil }
