package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// ShardReader reads one shard as the part it was written from. Several goroutines may call ReadChunk.
type ShardReader interface {
	Manifest() replica.Manifest
	Regions() []replica.Region
	// ReadChunk reads chunk i into dst, grown if it is too short, and checks it against its digest. After an error dst must not be
	// used again: a call that was given up may still write to it.
	ReadChunk(i int, dst []byte) ([]byte, error)
	Close()
}

type shard struct {
	rec   *sideRecord
	l     safetensors.Layout
	f     source
	file  string // below the job's directory
	name  string
	bad   func() // told of bytes that are not those that were written
	data  uint64 // where the tensors' bytes begin
	close func()
}

// OpenShard opens a part of a durable generation. Its header must be the one that its manifest makes; bytes are checked as
// they are read. While it is open, Prune keeps the generation.
func (s *Store) OpenShard(f Found, part replica.Part) (ShardReader, error) {
	sh, err := s.openShard(f, part)
	if err != nil {
		return nil, fmt.Errorf("open shard %v of durable generation %v: %w", part, f.Generation, err)
	}
	return sh, nil
}

func (s *Store) openShard(f Found, part replica.Part) (_ *shard, err error) {
	dir, err := jobDir(f.JobName, f.Job)
	if err != nil {
		return nil, err
	}
	info, ok := f.Shard(part)
	if !ok {
		return nil, errors.New("the marker does not list it")
	}
	t, err := s.at()
	if err != nil {
		return nil, err
	}
	s.hold(f.Path, 1)
	defer func() {
		if err != nil {
			s.hold(f.Path, -1)
			err = t.explain(err)
		}
	}()
	name := path.Join(dir, info.File)
	bad := func(file, what string, err error) error {
		s.isGood(name, false)
		return &damaged{Damage{file, WholeFile, what}, err}
	}
	rec, err := t.readSide(dir, info)
	if errors.Is(err, ErrCorrupt) {
		return nil, bad(strings.TrimSuffix(info.File, shardExt)+sideExt, "it is damaged", err)
	}
	if err != nil {
		return nil, err
	}
	l, err := safetensors.NewLayout(&rec.Manifest, rec.Regions)
	if err != nil {
		return nil, bad(strings.TrimSuffix(info.File, shardExt)+sideExt, "its regions do not fit its part", fmt.Errorf("%w: %w", ErrCorrupt, err))
	}
	file, st, err := t.openFile(name, workPatience)
	if err != nil {
		return nil, err
	}
	sh := &shard{rec: rec, l: l, f: file, file: info.File, name: name, bad: func() { s.isGood(name, false) }}
	if err := sh.readHeader(info, st.Size()); err != nil {
		if SkipKindOf(err) == Unreadable { // the disk's refusal says nothing of the bytes
			return nil, errors.Join(fmt.Errorf("%s: %w", name, err), file.Close())
		}
		return nil, errors.Join(bad(info.File, "its header is damaged", fmt.Errorf("%s: %w: %w", name, ErrCorrupt, err)), file.Close())
	}
	sh.close = sync.OnceFunc(func() {
		_ = file.Close() // it was only read
		s.hold(f.Path, -1)
	})
	return sh, nil
}

// hold counts the open shards of a generation.
func (s *Store) hold(path string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading[path] += n; s.reading[path] == 0 {
		delete(s.reading, path)
	}
}

func (sh *shard) readHeader(info replica.ShardInfo, size int64) error {
	if uint64(size) != info.Bytes || size < 8 {
		return fmt.Errorf("%d bytes, the marker says %d", size, info.Bytes)
	}
	var length [8]byte
	if _, err := sh.f.ReadAt(length[:], 0); err != nil {
		return err
	}
	n, err := safetensors.HeaderLength(length)
	if err != nil {
		return err
	}
	if n > info.Bytes-8 {
		return fmt.Errorf("%w: header of %d bytes in a file of %d", safetensors.ErrFormat, n, info.Bytes)
	}
	b := make([]byte, n)
	if _, err := sh.f.ReadAt(b, 8); err != nil {
		return err
	}
	h, err := safetensors.ParseHeader(b, info.Bytes-8-n)
	if err != nil {
		return err
	}
	sh.data = h.Size
	if h.Metadata["root"] != info.Root.String() {
		return fmt.Errorf("header is of root %q, want %v", h.Metadata["root"], info.Root)
	}
	return sh.l.Matches(h)
}

func (sh *shard) Manifest() replica.Manifest { return sh.rec.Manifest }
func (sh *shard) Regions() []replica.Region  { return sh.rec.Regions }
func (sh *shard) Close()                     { sh.close() }

// damaged blames a chunk for an error.
func (sh *shard) damaged(chunk int, what string, err error) error {
	sh.bad()
	return &damaged{Damage{sh.file, chunk, what}, err}
}

func (sh *shard) ReadChunk(i int, dst []byte) ([]byte, error) {
	m := &sh.rec.Manifest
	if i < 0 || i >= len(m.Chunks) {
		return nil, fmt.Errorf("%s: chunk %d of %d", sh.name, i, len(m.Chunks))
	}
	off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
	if uint64(cap(dst)) < n {
		dst = make([]byte, n)
	}
	dst = dst[:n]
	first := int64(-1) // where in the file the chunk begins, for the error
	err := sh.l.Spans(off, n, func(from, to, at uint64, gap bool) error {
		if gap {
			clear(dst[from:to])
			return nil
		}
		if first < 0 {
			first = int64(sh.data + at)
		}
		if got, err := sh.f.ReadAt(dst[from:to], int64(sh.data+at)); err != nil {
			if errors.Is(err, io.EOF) {
				return sh.damaged(i, "the file ends before it", fmt.Errorf("%w: it ends after %d bytes of %d at offset %d", ErrCorrupt, got, to-from, sh.data+at))
			}
			return err
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: chunk %d: %w", sh.name, i, err)
	}
	if got := hash(dst); got != m.Chunks[i] {
		return nil, sh.damaged(i, "digest differs", fmt.Errorf("%s: chunk %d at offset %d: %w: digest %v, want %v", sh.name, i, max(first, 0), ErrCorrupt, got, m.Chunks[i]))
	}
	return dst, nil
}

// Verify reads a durable generation whole, until ctx ends: every chunk against its digest, and every file against the marker's. Nothing is read
// twice, and a few shards at a time: a recovery from disk waits for it. It leaves no mark: see ReadBack.
func (s *Store) Verify(ctx context.Context, f Found) error { return s.verifyAll(ctx, f, How{}) }

func (s *Store) verifyAll(ctx context.Context, f Found, how How) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	turn := make(chan struct{}, verifiers)
	for _, info := range f.Shards {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			if err := s.verify(ctx, f, info, how); err != nil {
				cancel(err) // the first one counts
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("verify durable generation %v of job %s: %w", f.Generation, f.JobName, err)
	}
	return nil
}

func (h How) pace(ctx context.Context, bytes int) error {
	if h.Pace == nil {
		return nil
	}
	return h.Pace(ctx, bytes)
}

// verifiers is how many shards are read at once. One reader alone gets a part of what a shared file system can give.
const verifiers = 4

func (s *Store) verify(ctx context.Context, f Found, info replica.ShardInfo, how How) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	sh, err := s.openShard(f, info.Part)
	if err != nil {
		return err
	}
	defer sh.Close()
	if how.Cold {
		sh.f.forget()
		defer sh.f.forget()
	}
	h := xxh3.New()
	buf := make([]byte, sh.data)
	if err := how.pace(ctx, len(buf)); err != nil {
		return err
	}
	if _, err := sh.f.ReadAt(buf, 0); err != nil {
		return fmt.Errorf("%s: %w", sh.name, err)
	}
	_, _ = h.Write(buf) // it returns no error
	m := &sh.rec.Manifest
	for i := range m.Chunks {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		if err := how.pace(ctx, int(n)); err != nil {
			return err
		}
		if buf, err = sh.ReadChunk(i, buf[:cap(buf)]); err != nil {
			return err
		}
		err = sh.l.Spans(off, n, func(from, to, _ uint64, gap bool) error {
			if !gap { // the file has tensors in the order of the part, and nothing between them
				_, _ = h.Write(buf[from:to])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if got := replica.Digest(h.Sum128().Bytes()); got != info.Digest {
		return sh.damaged(WholeFile, "its digest differs", fmt.Errorf("%s: %w: file digest %v, the marker says %v", sh.name, ErrCorrupt, got, info.Digest))
	}
	return nil
}
