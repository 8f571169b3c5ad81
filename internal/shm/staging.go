package shm

import (
	"fmt"
	"slices"
	"sync"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/replica"
)

// Staging fills a place with a part that comes from elsewhere: a restore, or a mirror's copy. Put may be called from several
// goroutines; Seal and Abort wait for those under way, and one of them ends it.
type Staging struct {
	a     *Arena
	p     Place
	count uint64
	m     replica.Manifest

	writes sync.WaitGroup // Puts under way; joined under no lock
	mu     sync.Mutex     // guards have, left, ended
	have   []bool
	left   int
	ended  bool
	copied bool // the caller's goroutine's
}

// Stage is Take and Reuse.
func (a *Arena) Stage(p Place, m replica.Manifest) (*Staging, error) {
	s, err := a.Take(p, m)
	if err != nil {
		return nil, err
	}
	if err := s.Reuse(); err != nil {
		s.Abort()
		return nil, err
	}
	return s, nil
}

// Take takes a FREE place for the part that m describes, and touches none of its bytes. Reuse is next.
func (a *Arena) Take(p Place, m replica.Manifest) (*Staging, error) {
	if !a.Has(p) {
		return nil, a.fail(p, ErrNoPlace)
	}
	if err := a.fits(p, &m); err != nil {
		return nil, a.fail(p, err)
	}
	w := a.Word(p)
	if w.State() != replica.SlotFree || !a.swap(p, w, replica.PackSlot(w.Count(), replica.SlotCopying)) {
		return nil, a.fail(p, fmt.Errorf("%w: %v, want FREE", ErrState, w.State()))
	}
	m.Chunks = slices.Clone(m.Chunks)
	return &Staging{a: a, p: p, count: w.Count(), m: m, have: make([]bool, len(m.Chunks)), left: len(m.Chunks)}, nil
}

// Reuse finds chunks whose bytes the arena has already, here from an interrupted staging or sealed in another place: they are
// rehashed now, which may be all of the part, and count as there. It comes before any Put.
func (s *Staging) Reuse() error {
	err := s.reuse()
	if err == nil {
		err = s.a.writeMeta(s.p, s.info(replica.Digest{})) // the digests say, after an interruption, what may be here
	}
	if err != nil {
		return s.a.fail(s.p, err)
	}
	return nil
}

// fits tells whether the part can lie in the place, and is consistent in itself.
func (a *Arena) fits(p Place, m *replica.Manifest) error {
	_, n := a.span(p)
	switch {
	case m.Check() != nil:
		return m.Check()
	case m.Cluster != a.spec.Cluster || m.Job != a.spec.Job:
		return fmt.Errorf("manifest of job %v of cluster %v", m.Job, m.Cluster)
	case m.Part.Kind != p.PartKind():
		return fmt.Errorf("can't hold the part %v", m.Part)
	case m.Bytes != n || m.ChunkBytes != a.spec.ChunkBytes:
		return fmt.Errorf("manifest of %v has %d bytes in chunks of %d, the place %d in chunks of %d", m.Part, m.Bytes, m.ChunkBytes, n, a.spec.ChunkBytes)
	case m.Geometry != a.head.Geometry[m.Part.Kind]:
		return fmt.Errorf("manifest of %v has geometry %v, the arena %v: the ranks of a group must register the same regions in the same order", m.Part, m.Geometry, a.head.Geometry[m.Part.Kind])
	case m.Generation.IsZero() || m.Generation.Epoch > replica.MaxEpoch || m.Generation.Step > replica.MaxStep || m.Flags&^known(p.Kind) != 0:
		return fmt.Errorf("manifest of %v: generation %v, flags %#x", m.Part, m.Generation, uint32(m.Flags))
	case Root(m) != m.Root:
		return fmt.Errorf("manifest of %v has root %v, its digests make %v (%w)", m.Part, m.Root, Root(m), ErrCorrupt)
	}
	return nil
}

// Left counts the chunks of a part that a FREE place may have, by the digests of what it held last. They are a hint: Reuse hashes the bytes.
func (a *Arena) Left(p Place, m *replica.Manifest) (chunks int) {
	old, err := a.digestsOf(p, len(m.Chunks))
	for i := 0; err == nil && i < len(m.Chunks); i++ {
		if old(i) == m.Chunks[i] {
			chunks++
		}
	}
	return chunks
}

// digestsOf reads the digests in a place's meta, whatever its state.
func (a *Arena) digestsOf(p Place, chunks int) (func(i int) replica.Digest, error) {
	b := make([]byte, metaBytes+16*chunks)
	_, err := a.file.ReadAt(b, int64(a.metaOf(p)))
	return func(i int) replica.Digest { return replica.Digest(b[metaBytes+16*i:][:16]) }, err
}

// reuse looks for chunks in what the place held last, by the digests in its old meta, which are no more than a hint, and in
// sealed places of the same kind.
func (s *Staging) reuse() error {
	old, err := s.a.digestsOf(s.p, len(s.m.Chunks))
	if err != nil {
		return err
	}
	off, n := s.a.span(s.p)
	for i, want := range s.m.Chunks {
		if old(i) != want || planted.Afresh {
			continue
		}
		at, size := replica.ChunkSpan(i, n, s.m.ChunkBytes)
		got, err := s.a.hashAt(off+at, size)
		if err != nil {
			return err
		}
		if got == want {
			s.arrived(i)
		}
	}
	for _, p := range s.a.Places() {
		if p.Kind != s.p.Kind || p == s.p || s.lacks() == 0 {
			continue
		}
		info, err := s.a.Sealed(p)
		if err != nil {
			continue // it has nothing to offer
		}
		for i, want := range s.m.Chunks {
			if s.Have(i) || info.Digests[i] != want {
				continue
			}
			got, err := s.copyChunk(p, i)
			if err != nil {
				return err
			}
			if got == want { // else it lies, or was freed meanwhile: it is fetched
				s.arrived(i)
			}
		}
	}
	return nil
}

// copyChunk copies chunk i from another place of the kind, piece by piece through the cache, and returns the digest of what was written.
func (s *Staging) copyChunk(from Place, i int) (replica.Digest, error) {
	if w := s.a.Word(s.p); w != s.word(replica.SlotCopying) {
		return replica.Digest{}, fmt.Errorf("%w: %v in use %d, staging has use %d", ErrState, w.State(), w.Count(), s.count)
	}
	src, n := s.a.span(from)
	dst, _ := s.a.span(s.p)
	at, size := replica.ChunkSpan(i, n, s.m.ChunkBytes)
	return s.a.eachPiece(src+at, size, func(off uint64, b []byte) error {
		_, err := s.a.file.WriteAt(b, int64(dst+at+off))
		s.a.hasStored()
		return err
	})
}

// Have tells whether chunk i is there.
func (s *Staging) Have(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return i >= 0 && i < len(s.have) && s.have[i]
}

// arrived notes that chunk i is there.
func (s *Staging) arrived(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.have[i] {
		s.have[i] = true
		s.left--
	}
}

func (s *Staging) lacks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// Ended tells whether the staging was sealed or aborted, or is about to be.
func (s *Staging) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Place is where the part is written to.
func (s *Staging) Place() Place { return s.p }

// Came is how many bytes have been put into the arena since this process has it: it rises while parts come. What was found there counts for nothing.
func (a *Arena) Came() uint64 { return a.came.Load() }

// Manifest describes the part that is on its way.
func (s *Staging) Manifest() replica.Manifest { return s.m }

// ReadChunk copies chunk i out, which is there (Have), into dst if it has room. It fails once the place is used for something else. Any goroutine
// may call it, also after the end.
func (s *Staging) ReadChunk(i int, dst []byte) ([]byte, error) {
	if !s.Have(i) {
		return nil, s.a.fail(s.p, fmt.Errorf("chunk %d has not come: %w", i, ErrState))
	}
	off, n := s.a.span(s.p)
	at, size := replica.ChunkSpan(i, n, s.m.ChunkBytes)
	dst = slices.Grow(dst[:0], int(size))[:size]
	if _, err := s.a.file.ReadAt(dst, int64(off+at)); err != nil {
		return nil, s.a.fail(s.p, fmt.Errorf("chunk %d: %w", i, err))
	}
	switch w := s.a.Word(s.p); w { // whatever becomes of the part in this use of the place, its bytes stay what they are
	case s.word(replica.SlotCopying), s.word(replica.SlotCopied), s.word(replica.SlotSealed):
		return dst, nil
	}
	return nil, s.a.fail(s.p, ErrChanged)
}

// Put writes chunk i. That b has its digest the caller has checked. A chunk that is there already is let be.
func (s *Staging) Put(i int, b []byte) error {
	if i < 0 || i >= len(s.m.Chunks) {
		return s.a.fail(s.p, fmt.Errorf("no chunk %d among %d", i, len(s.m.Chunks)))
	}
	off, n := s.a.span(s.p)
	at, size := replica.ChunkSpan(i, n, s.m.ChunkBytes)
	if uint64(len(b)) != size {
		return s.a.fail(s.p, fmt.Errorf("chunk %d of %d bytes, want %d: %w", i, len(b), size, ErrCorrupt))
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return s.a.fail(s.p, fmt.Errorf("%w: staging has ended", ErrState))
	}
	if s.have[i] {
		s.mu.Unlock()
		return nil
	}
	s.writes.Add(1)
	s.mu.Unlock()
	defer s.writes.Done()
	if w := s.a.Word(s.p); w != s.word(replica.SlotCopying) {
		return s.a.fail(s.p, fmt.Errorf("%w: %v in use %d, staging has use %d", ErrState, w.State(), w.Count(), s.count))
	}
	if _, err := s.a.file.WriteAt(b, int64(off+at)); err != nil {
		return s.a.fail(s.p, fmt.Errorf("chunk %d: %w", i, err))
	}
	s.a.hasStored()
	s.arrived(i)
	s.a.came.Add(uint64(len(b)))
	return nil
}

// Seal makes the part loadable under its origin's generation. A missing chunk is an error and leaves the staging as it was.
func (s *Staging) Seal() error {
	if !s.copied {
		if err := s.Copied(); err != nil {
			return err
		}
	}
	if !s.a.swap(s.p, s.word(replica.SlotCopied), s.word(replica.SlotSealed)) {
		return s.a.fail(s.p, ErrChanged)
	}
	return nil
}

// Copied is Seal's first half: all bytes are there, and whoever comes after this process may seal them (Finish).
func (s *Staging) Copied() error {
	s.mu.Lock()
	if s.ended || s.left > 0 {
		defer s.mu.Unlock()
		return s.a.fail(s.p, fmt.Errorf("%w: seal with %d of %d chunks missing, ended: %v", ErrState, s.left, len(s.have), s.ended))
	}
	s.ended = true
	s.mu.Unlock()
	s.writes.Wait()
	if err := s.a.writeMeta(s.p, s.info(s.m.Root)); err != nil {
		s.release()
		return s.a.fail(s.p, err)
	}
	if !s.a.swap(s.p, s.word(replica.SlotCopying), s.word(replica.SlotCopied)) {
		return s.a.fail(s.p, ErrChanged)
	}
	s.copied = true
	return nil
}

// Abort gives the place back, unless it was sealed. What arrived stays in it, for a later Stage to find.
func (s *Staging) Abort() {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	s.mu.Unlock()
	s.writes.Wait()
	s.release()
}

// release frees the place if it still is this staging's.
func (s *Staging) release() {
	if s.a.swap(s.p, s.word(replica.SlotCopying), s.word(replica.SlotTorn)) {
		s.a.swap(s.p, s.word(replica.SlotTorn), replica.PackSlot(s.count+1, replica.SlotFree))
	}
}

func (s *Staging) word(st replica.SlotState) replica.SlotWord { return replica.PackSlot(s.count, st) }

func (s *Staging) info(root replica.Digest) Info {
	return Info{Generation: s.m.Generation, Flags: s.m.Flags, Root: root, Bytes: s.m.Bytes, Rank: s.m.Rank, Incarnation: s.m.Incarnation, FrozenRoot: s.m.FrozenRoot, Digests: s.m.Chunks, Count: s.count}
}
