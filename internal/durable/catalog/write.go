package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Attempt is one try to write one generation of a run. Its number tells its objects from those of all other tries.
type Attempt struct {
	Run        Run
	Generation replica.Generation
	Write      uint64
}

// Part is a sealed part in memory: its manifest, all regions of its rank, and its chunks.
type Part struct {
	Manifest replica.Manifest
	Regions  []replica.Region
	Read     func(i int, dst []byte) ([]byte, error)
}

// Names of objects.
func groupName(p replica.Part) string { return fmt.Sprintf("group-%d", p.Index) }

// NodeObject is the name of the object that the private parts of a node's ranks are packed in.
func NodeObject(node replica.NodeName) string { return "node-" + string(node) }

// WriteObject writes parts as one object: a group's replicated part by itself, or the private parts of a node under NodeObject. Every chunk
// is checked on the way; what could not be read back as its manifest says is never completed. Writing the same again is no error.
func (c *Catalog) WriteObject(ctx context.Context, a Attempt, name string, parts ...Part) (format.Written, error) {
	n := format.Name{Kind: format.ShardKind, Generation: a.Generation, Write: a.Write, Shard: name}
	w, err := c.write(ctx, a.Run, n, "", parts)
	if err != nil {
		return w, fmt.Errorf("write %s of generation %v of job %s: %w", name, a.Generation, a.Run.Job, err)
	}
	return w, nil
}

// WriteGroup is WriteObject for a group's replicated part.
func (c *Catalog) WriteGroup(ctx context.Context, a Attempt, p Part) (format.Written, error) {
	return c.WriteObject(ctx, a, groupName(p.Manifest.Part), p)
}

// WriteFrozen writes the frozen part of a group, twice, unless both are there. A twin that is not what memory says is written anew. Whether
// it is, is looked at once in the life of a catalog, and after each read that failed.
func (c *Catalog) WriteFrozen(ctx context.Context, r Run, p Part) (w format.Written, err error) {
	name := frozenName(p.Manifest, 'a')
	if w, ok := c.seen(r, name); ok {
		return w, nil
	}
	twins := [2]format.Name{name, frozenName(p.Manifest, 'b')}
	want, err := c.plan(r, p, name, twins[1].String())
	if err != nil {
		return w, fmt.Errorf("write the frozen part of group %d of job %s: %w", p.Manifest.Part.Index, r.Job, err)
	}
	c.mu.Lock()
	suspect := c.suspect[r.Key(name)]
	c.mu.Unlock()
	for _, n := range twins {
		if err := c.freeze(ctx, r, n, want, p, suspect); err != nil {
			return w, fmt.Errorf("write the frozen part of group %d of job %s: %w", p.Manifest.Part.Index, r.Job, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen[r.Key(name)] = want
	delete(c.suspect, r.Key(name))
	return want, nil
}

func frozenName(m replica.Manifest, twin byte) format.Name {
	return format.Name{Kind: format.SharedKind, Group: m.Part.Index, Root: m.Root, Twin: twin}
}

func (c *Catalog) seen(r Run, n format.Name) (format.Written, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.frozen[r.Key(n)]
	return w, ok
}

// doubt has the next write of a frozen part look at what lies there.
func (c *Catalog) doubt(r Run, n format.Name) {
	n.Twin = 'a'
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.frozen, r.Key(n))
	c.suspect[r.Key(n)] = true
}

// plan says what a frozen file will be, by its bytes in memory.
func (c *Catalog) plan(r Run, p Part, name format.Name, twin string) (format.Written, error) {
	o, head, err := format.NewObject([]format.Source{{Manifest: p.Manifest, Regions: p.Regions}})
	if err != nil {
		return format.Written{}, err
	}
	src := newSource(head, o, []Part{p})
	sum, err := digest(src, int64(o.Size()))
	return format.Written{File: format.File{Key: name.String(), Twin: twin, Bytes: o.Size(), Header: o.Head, SHA256: sum}, Object: o}, err
}

// freeze makes one twin be what it should be.
func (c *Catalog) freeze(ctx context.Context, r Run, n format.Name, want format.Written, p Part, suspect bool) error {
	key := r.Key(n)
	err := c.whole(ctx, key, want.File, suspect)
	if err == nil {
		return nil
	}
	if !errors.Is(err, store.ErrAbsent) && !errors.Is(err, store.ErrCorrupt) {
		return err
	}
	if errors.Is(err, store.ErrCorrupt) {
		if err := c.remove(ctx, key); err != nil {
			return err
		}
	}
	_, err = c.write(ctx, r, n, "", []Part{p})
	return err
}

// whole tells whether an object has the bytes that its file should have: by the checksum that the store made when it got them, or, where
// there is none or read asks for it, by reading it.
func (c *Catalog) whole(ctx context.Context, key string, f format.File, read bool) error {
	var info store.Info
	err := c.again(ctx, func() (err error) {
		info, err = c.st.Stat(ctx, key)
		return err
	})
	if err != nil {
		return err
	}
	if info.Size != int64(f.Bytes) || info.Checksum != "" && info.Checksum != f.SHA256 {
		return fmt.Errorf("%s: %w: %d bytes, SHA-256 %s; want %d, %s", key, store.ErrCorrupt, info.Size, info.Checksum, f.Bytes, f.SHA256)
	}
	if info.Checksum == f.SHA256 && !read {
		return nil
	}
	s := c.stream(ctx, key, int64(f.Bytes))
	defer s.close()
	sum, err := digest(s, int64(f.Bytes))
	if err == nil && sum != f.SHA256 {
		err = fmt.Errorf("%s: %w: SHA-256 %s, want %s", key, store.ErrCorrupt, sum, f.SHA256)
	}
	return err
}

// write uploads one object.
func (c *Catalog) write(ctx context.Context, r Run, n format.Name, twin string, parts []Part) (w format.Written, err error) {
	sources := make([]format.Source, len(parts))
	for i, p := range parts {
		if p.Manifest.Job != r.ID {
			return w, fmt.Errorf("%v is of job %v, the run is %v", p.Manifest.Part, p.Manifest.Job, r.ID)
		}
		if n.Kind == format.ShardKind && p.Manifest.Generation != n.Generation {
			return w, fmt.Errorf("%v is of generation %v", p.Manifest.Part, p.Manifest.Generation)
		}
		sources[i] = format.Source{Manifest: p.Manifest, Regions: p.Regions}
	}
	if format.ParseName(n.String()) != n {
		return w, fmt.Errorf("%q is no name of an object", n.String())
	}
	o, head, err := format.NewObject(sources)
	if err != nil {
		return w, err
	}
	src := newSource(head, o, parts)
	sum, err := c.upload(ctx, r.Key(n), int64(o.Size()), src.fill)
	w = format.Written{File: format.File{Key: n.String(), Twin: twin, Bytes: o.Size(), Header: o.Head, SHA256: fmt.Sprintf("%x", sum)}, Object: o}
	return w, err
}

// source gives the bytes of a file, from its header and its parts' chunks, each checked.
type source struct {
	parts []Part
	o     *format.Object
	part  int // the one whose chunks are read
	chunk int // the next one of it
	buf   []byte
	left  []byte // bytes that were made and not yet taken; below it lies buf, or the header
	spare []byte // what a chunk's tensors are gathered in
}

func newSource(head []byte, o *format.Object, parts []Part) *source {
	return &source{parts: parts, o: o, left: head}
}

func (s *source) fill(b []byte) error {
	for len(b) > 0 {
		if len(s.left) == 0 {
			if err := s.next(); err != nil {
				return err
			}
			continue
		}
		n := copy(b, s.left)
		b, s.left = b[n:], s.left[n:]
	}
	return nil
}

// next reads one more chunk.
func (s *source) next() error {
	for s.part < len(s.parts) && s.chunk == len(s.o.Parts[s.part].Manifest.Chunks) {
		s.part, s.chunk = s.part+1, 0
	}
	if s.part == len(s.parts) {
		return io.ErrUnexpectedEOF
	}
	p := &s.o.Parts[s.part]
	m := &p.Manifest
	off, n := replica.ChunkSpan(s.chunk, m.Bytes, m.ChunkBytes)
	if uint64(cap(s.buf)) < n {
		s.buf = make([]byte, n)
	}
	b, err := s.parts[s.part].Read(s.chunk, s.buf[:n])
	if err != nil {
		return fmt.Errorf("read chunk %d of %v: %w", s.chunk, m.Part, err)
	}
	if got := safetensors.Hash(b); uint64(len(b)) != n || got != m.Chunks[s.chunk] {
		return fmt.Errorf("read chunk %d of %v: %w: %d bytes with digest %v, want %d with %v", s.chunk, m.Part, store.ErrCorrupt, len(b), got, n, m.Chunks[s.chunk])
	}
	s.chunk++
	s.spare = s.spare[:0]
	err = p.Layout.Spans(off, n, func(from, to, _ uint64, gap bool) error {
		if gap {
			return checkGap(off+from, b[from:to])
		}
		s.spare = append(s.spare, b[from:to]...)
		return nil
	})
	s.left = s.spare
	return err
}

// checkGap refuses bytes between regions that are not zero: the file leaves them out.
func checkGap(at uint64, b []byte) error {
	for i, c := range b {
		if c != 0 {
			return fmt.Errorf("byte %d lies between regions and is %#02x, not zero: the part can't be written as tensors", at+uint64(i), c)
		}
	}
	return nil
}
