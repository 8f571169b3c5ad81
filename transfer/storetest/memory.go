package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Memory is a store in memory with all abilities, for what wraps a store. It keeps the contract, and knows one job.
type Memory struct {
	now  transfer.Key // the cluster, era, job, epoch, rank and incarnation that it serves
	peer replica.NodeName

	mu      sync.Mutex // guards the rest
	parts   map[replica.Digest]Part
	coming  map[replica.Digest]*taking
	readers int
	filled  int
}

// NewMemory makes a store that serves the keys of a part, to one peer. The epoch before the part's is closed.
func NewMemory(peer replica.NodeName, has Part) *Memory {
	return &Memory{now: has.Key, peer: peer, parts: map[replica.Digest]Part{has.Key.Root: has}, coming: map[replica.Digest]*taking{}}
}

// MemoryBed is a bed of a store in memory, and that store. Its peer is n2.
func MemoryBed() (Bed, *Memory) {
	k := transfer.Key{Cluster: replica.ClusterID{1}, Era: 2, Job: replica.JobID{2}, Epoch: 4, Part: replica.OfGroup(1),
		Generation: replica.Generation{Epoch: 3, Step: 40}, Rank: 1, Incarnation: 7}
	next := k
	next.Generation.Step++
	has, takes := Make(k, 1, 10_000, 4096), Make(next, 2, 10_000, 4096)
	m := NewMemory("n2", has)
	return Bed{Store: m, Peer: "n2", Stranger: "n3", Has: has, Takes: takes, InUse: m.InUse}, m
}

// InUse names what is open, and what is on its way.
func (m *Memory) InUse() (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list = slices.Repeat([]string{"reader"}, m.readers)
	return append(list, slices.Repeat([]string{"place"}, m.filled)...)
}

func (m *Memory) check(k transfer.Key) error {
	switch {
	case k.Cluster != m.now.Cluster:
		return errors.New("a part of another cluster")
	case k.Job != m.now.Job || k.Epoch > m.now.Epoch || k.Era > m.now.Era:
		return transfer.ErrNotYet
	case k.Era < m.now.Era || k.Epoch < m.now.Epoch || k.Rank != m.now.Rank || k.Incarnation < m.now.Incarnation:
		return transfer.ErrFenced
	case k.Incarnation > m.now.Incarnation:
		return transfer.ErrNotYet
	}
	return nil
}

// Open serves a part.
func (m *Memory) Open(peer replica.NodeName, k transfer.Key) (transfer.Reader, error) {
	if err := m.check(k); err != nil {
		return nil, err
	}
	if peer != m.peer {
		return nil, transfer.ErrRefused
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.parts[k.Root]
	if on := m.coming[k.Root]; !ok && on != nil && on.p.Key.Part == k.Part && on.p.Key.Generation == k.Generation {
		m.readers++
		return &receiving{opened{reader{on.p}, m}, on}, nil
	}
	if !ok || p.Key.Part != k.Part || p.Key.Generation != k.Generation {
		return nil, transfer.ErrUnknownPart
	}
	m.readers++
	return &opened{reader{p}, m}, nil
}

// opened is a reader that is counted.
type opened struct {
	reader
	m *Memory
}

func (o *opened) Close() {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	o.m.readers--
}

// receiving reads what has come of a part.
type receiving struct {
	opened
	of *taking
}

func (r *receiving) Has(i int) bool { return r.of.Have(i) }

func (r *receiving) ReadChunk(i int, dst []byte) ([]byte, error) {
	if !r.of.Have(i) {
		return nil, fmt.Errorf("chunk %d has not come", i)
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	return dst[:copy(dst, r.of.p.Chunks[i])], nil
}

// Accept takes a part.
func (m *Memory) Accept(peer replica.NodeName, k transfer.Key, man replica.Manifest) (transfer.Sink, func(error) error, error) {
	if err := m.check(k); err != nil {
		return nil, nil, err
	}
	if peer != m.peer {
		return nil, nil, errors.New("a part from a node that does not hold it")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.filled++
	s := &taking{p: Part{k, man, make([][]byte, len(man.Chunks))}}
	m.coming[k.Root] = s
	if has, ok := m.parts[k.Root]; ok {
		copy(s.p.Chunks, has.Chunks)
	}
	return s, func(err error) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.filled--
		delete(m.coming, k.Root)
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		if i := slices.IndexFunc(s.p.Chunks, func(b []byte) bool { return b == nil }); err == nil && i >= 0 {
			err = fmt.Errorf("chunk %d has not come", i)
		}
		if err == nil {
			m.parts[k.Root] = s.p
		}
		return err
	}, nil
}

// taking is a part that is on its way.
type taking struct {
	mu    sync.Mutex
	p     Part
	ended bool
}

func (s *taking) Have(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.p.Chunks[i] != nil
}

func (s *taking) Put(i int, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i < 0 || i >= len(s.p.Chunks) {
		return fmt.Errorf("no chunk %d", i)
	}
	if s.ended {
		return fmt.Errorf("chunk %d: the push has ended", i)
	}
	if _, n := replica.ChunkSpan(i, s.p.Manifest.Bytes, s.p.Manifest.ChunkBytes); uint64(len(b)) != n {
		return fmt.Errorf("chunk %d of %d bytes, want %d", i, len(b), n)
	}
	s.p.Chunks[i] = slices.Clone(b)
	return nil
}
