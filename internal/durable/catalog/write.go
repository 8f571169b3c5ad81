package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Attempt is one try to write one generation of a run. Its number tells its objects from those of all other tries.
type Attempt struct {
	Run        find.Run
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
	w, err := c.writeObject(ctx, a, name, parts)
	if err != nil {
		return w, fmt.Errorf("write %s of generation %v of job %s: %w", name, a.Generation, a.Run.Job, err)
	}
	return w, nil
}

// writeObject writes an object of an attempt. What is encrypted once more has other bytes, stores replace what is there when an upload is
// completed, and a COMMIT may name what an earlier try has left: that is taken, and what is written has a name of its own.
func (c *Catalog) writeObject(ctx context.Context, a Attempt, name string, parts []Part) (format.Written, error) {
	n := format.Name{Kind: format.ShardKind, Generation: a.Generation, Write: a.Write, Shard: name}
	if c.keys.Seals() {
		if w, ok, err := c.earlier(ctx, a, name, parts); err != nil || ok {
			return w, err
		}
		n.Seal = format.NewSeal(c.keys.Tag())
	}
	return c.write(ctx, a.Run, n, parts)
}

// tries lists what lies there under the name of an object of an attempt, encrypted or not.
func (c *Catalog) tries(ctx context.Context, a Attempt, name string) (list []format.Name, err error) {
	n := format.Name{Kind: format.ShardKind, Generation: a.Generation, Write: a.Write, Shard: name}
	begins := strings.TrimSuffix(a.Run.Key(n), path.Ext(n.String())) + "."
	err = c.objects.List(ctx, begins, "", func(info store.Info) error {
		o := format.ParseName(strings.TrimPrefix(info.Key, a.Run.Prefix()))
		if n.Seal = o.Seal; o == n {
			list = append(list, o)
		}
		return nil
	})
	return list, err
}

// earlier is an object of an attempt that is there whole, encrypted to those of this catalog. What else is there is left, and written
// beside.
func (c *Catalog) earlier(ctx context.Context, a Attempt, name string, parts []Part) (w format.Written, ok bool, err error) {
	list, err := c.tries(ctx, a, name)
	for _, n := range list {
		if !n.SealedFor(c.keys.Tag()) {
			continue
		}
		w, err = c.isWritten(ctx, a.Run, n, manifests(parts))
		if err == nil {
			return w, true, nil
		}
		if damage.Fatal(err) != nil && !errors.Is(err, find.ErrLocked) {
			return w, false, err
		}
		err = nil
	}
	return w, false, err
}

// WriteGroup is WriteObject for a group's replicated part.
func (c *Catalog) WriteGroup(ctx context.Context, a Attempt, p Part) (format.Written, error) {
	return c.WriteObject(ctx, a, groupName(p.Manifest.Part), p)
}

// WriteFrozen writes the frozen part of a group, twice, unless it is there. A file that has the very part stays as it is, whoever wrote it:
// the indexes of other generations name its bytes. A twin that rotted or went is written anew, from the other one or from memory. What is
// there is looked at once in the life of a catalog, and after each read that failed.
func (c *Catalog) WriteFrozen(ctx context.Context, r find.Run, p Part) (w format.Written, err error) {
	name := frozenName(p.Manifest, 'a')
	if w, ok := c.Reader.Seen(r, name); ok {
		return w, nil
	}
	if w, err = c.freeze(ctx, r, p); err != nil {
		return w, fmt.Errorf("write the frozen part of group %d of job %s: %w", p.Manifest.Part.Index, r.Job, err)
	}
	c.Reader.See(r, name, w)
	return w, nil
}

func (c *Catalog) freeze(ctx context.Context, r find.Run, p Part) (good format.Written, err error) {
	twins, err := c.twins(ctx, r, p.Manifest)
	if err != nil {
		return good, err
	}
	var there [2]error
	for i, n := range twins {
		var w format.Written
		if w, there[i] = c.frozenThere(ctx, r, n, p.Manifest); damage.Fatal(there[i]) != nil || errors.Is(there[i], format.ErrNewer) {
			return good, there[i]
		}
		switch {
		case there[i] == nil && good.Object == nil:
			good = w
		case there[i] == nil && w.File.SHA256 != good.File.SHA256:
			there[i] = fmt.Errorf("%s: %w: another file than its twin", n, store.ErrCorrupt)
		}
	}
	anew := twins
	if good.Object == nil && c.keys.Seals() { // what is encrypted once more has other bytes than the indexes say that name these
		anew = sealedTwins(twins[0], format.NewSeal(c.keys.Tag()))
	}
	for i, n := range twins {
		if there[i] == nil {
			continue
		}
		if !errors.Is(there[i], store.ErrAbsent) {
			if err := c.objects.Remove(ctx, r.Key(n)); err != nil {
				return good, err
			}
		}
		if good.Object == nil {
			good, err = c.write(ctx, r, anew[i], []Part{p})
		} else {
			err = c.objects.Transfer(ctx, r.Under(good.File.Key), c.objects, r.Key(anew[i]), good.File)
		}
		if err != nil {
			return good, err
		}
	}
	good.File.Key, good.File.Twin = anew[0].String(), anew[1].String()
	return good, nil
}

// twins are the names of a frozen part. Encrypted ones are looked for: what is encrypted to others than these recipients, or to nobody, is
// another file. Who has no key of them cannot tell what lies there, and writes beside it.
func (c *Catalog) twins(ctx context.Context, r find.Run, m replica.Manifest) (twins [2]format.Name, err error) {
	n := frozenName(m, 'a')
	if c.keys.Seals() && c.keys.Check() == nil {
		begins := strings.TrimSuffix(r.Key(n), ".a"+path.Ext(n.String())) + "."
		err = c.objects.List(ctx, begins, "", func(info store.Info) error {
			if o := format.ParseName(strings.TrimPrefix(info.Key, r.Prefix())); o.SealedFor(c.keys.Tag()) {
				n.Seal = o.Seal
				return objects.ErrStop
			}
			return nil
		})
	}
	if c.keys.Seals() && n.Seal == "" {
		n.Seal = format.NewSeal(c.keys.Tag())
	}
	return sealedTwins(n, n.Seal), err
}

func sealedTwins(n format.Name, seal string) (twins [2]format.Name) {
	n.Seal = seal
	twins[0], twins[1] = n, n
	twins[1].Twin = 'b'
	return twins
}

// frozenThere looks at one twin of a frozen part: whether it has the part, and every byte of it.
func (c *Catalog) frozenThere(ctx context.Context, r find.Run, n format.Name, m replica.Manifest) (w format.Written, err error) {
	w, err = c.isWritten(ctx, r, n, []replica.Manifest{m})
	if errors.Is(err, find.ErrLocked) { // its name says that a key of these opens it
		err = fmt.Errorf("%s: %w: it was changed: no key opens it", n, store.ErrCorrupt)
	}
	return w, err
}

// isWritten looks at an object that somebody may have written: whether it has these parts and no others, and every byte of them. It is
// read, whatever checksum the store has of it: that may be of something else than all of its bytes.
func (c *Catalog) isWritten(ctx context.Context, r find.Run, n format.Name, parts []replica.Manifest) (w format.Written, err error) {
	key := r.Key(n)
	info, err := c.objects.Stat(ctx, key)
	if err != nil {
		return w, err
	}
	w.File = format.File{Key: n.String(), Bytes: uint64(info.Size)}
	if w.File.Header, w.File.Sealed, err = c.headBytes(ctx, key, info.Size); err != nil {
		return w, err
	}
	o, s, err := c.Reader.Object(ctx, r, w.File, w.File.Key)
	if err != nil {
		return w, err
	}
	for _, m := range parts {
		if p, ok := o.Part(m.Part); !ok || len(o.Parts) != len(parts) || p.Manifest.Root != m.Root || p.Manifest.Job != r.ID {
			return w, fmt.Errorf("%s: %w: it has not %v with root %v", key, store.ErrCorrupt, m.Part, m.Root)
		}
	}
	if w.File.SHA256, err = c.Reader.ReadFile(ctx, r, w.File, w.File.Key, o, s, nil, func(uint64) {}); err == nil {
		w.Object = o
	}
	return w, err
}

// headBytes is how long the header is of what lies in a file, with its length field, and how much lies before what is encrypted where the
// catalog has recipients.
func (c *Catalog) headBytes(ctx context.Context, key string, size int64) (n, envelope uint64, err error) {
	want := int64(8)
	if c.keys.Seals() {
		want = min(size, sealed.FirstBytes)
	}
	if size < 8 {
		return 0, 0, fmt.Errorf("%s: %w: %d bytes", key, store.ErrCorrupt, size)
	}
	var first []byte
	err = c.objects.Again(ctx, func() error {
		first = make([]byte, want) // not used again after an error
		return c.objects.Range(ctx, key, 0, first)
	})
	if err == nil && c.keys.Seals() {
		first, envelope, err = c.firstOf(first, uint64(size))
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", key, err)
	}
	n, err = format.HeadBytes([8]byte(first))
	if err == nil && n > uint64(size) {
		err = fmt.Errorf("%s: %w: a header of %d bytes in %d", key, store.ErrCorrupt, n, size)
	}
	return n, envelope, err
}

// firstOf decrypts the first 8 bytes of what lies in an object, out of its own first ones.
func (c *Catalog) firstOf(b []byte, size uint64) (first []byte, envelope uint64, err error) {
	s, err := c.Reader.Unlock(b, size)
	if err != nil {
		return nil, 0, err
	}
	first = make([]byte, 8)
	if s.Size() < uint64(len(first)) {
		return nil, 0, fmt.Errorf("%w: %d bytes lie in it", store.ErrCorrupt, s.Size())
	}
	from, n := s.Span(0, uint64(len(first)))
	return first, s.Envelope(), damage.Corrupted(s.Decrypt(first, 0, b[from:min(from+n, uint64(len(b)))]))
}

func frozenName(m replica.Manifest, twin byte) format.Name {
	return format.Name{Kind: format.SharedKind, Group: m.Part.Index, Root: m.Root, Twin: twin}
}

// write uploads one object.
func (c *Catalog) write(ctx context.Context, r find.Run, n format.Name, parts []Part) (w format.Written, err error) {
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
	size, envelope, fill, err := c.sealing(o.Size(), newSource(head, o, parts).fill)
	if err != nil {
		return w, err
	}
	sum, err := c.objects.Upload(ctx, r.Key(n), int64(size), fill)
	w = format.Written{File: format.File{Key: n.String(), Bytes: size, Header: o.Head, SHA256: fmt.Sprintf("%x", sum), Sealed: envelope},
		Object: o}
	return w, err
}

func manifests(parts []Part) (list []replica.Manifest) {
	for _, p := range parts {
		list = append(list, p.Manifest)
	}
	return list
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
		return fmt.Errorf("read chunk %d of %v: %w: %d bytes with digest %v, want %d with %v", s.chunk, m.Part, store.ErrCorrupt, len(b),
			got, n, m.Chunks[s.chunk])
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
