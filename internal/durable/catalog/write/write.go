// Package write makes generations exist: claims of epochs, objects, COMMIT. An attempt has names that no other attempt has; what was given
// up is discarded.
//
// One fleet owns a run, by a claim of an epoch that is put if absent. A fleet that finds that another has taken the run commits no more.
//
// A Writer may be used by several goroutines.
package write

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/hints"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Writer writes the generations of one root.
type Writer struct {
	objects *objects.Writer
	find    *find.Finder
	read    *read.Reader
	hints   *hints.Hints
	who     string
	keys    *sealed.Keys
	now     func() time.Time
	weak    bool // the store ignores conditions

	mu   sync.Mutex
	kept map[store.Info]keptLook // tars of runs' files that were read; guarded by mu
}

// Options say who writes, and how.
type Options struct {
	Who           string       // in the entries that stand in the way of an index
	Keys          *sealed.Keys // to whom what is written is encrypted; nil: to nobody
	Now           func() time.Time
	Unconditional bool // the store ignores conditions: claims lie under keys of their fleets
}

// New makes a writer.
func New(o *objects.Writer, f *find.Finder, r *read.Reader, h *hints.Hints, is Options) *Writer {
	w := &Writer{objects: o, find: f, read: r, hints: h, who: is.Who, keys: is.Keys, now: is.Now, weak: is.Unconditional}
	w.kept = make(map[store.Info]keptLook)
	return w
}

// sealing has fill's bytes encrypted on their way into a file, where the catalog has recipients: how large the file is, and how much lies
// before them.
func (c *Writer) sealing(size uint64, fill func(b []byte) error) (stored, envelope uint64, sealing func(b []byte) error, err error) {
	if !c.keys.Seals() {
		return size, 0, fill, nil
	}
	s, err := c.keys.Seal(size, fill)
	if err != nil {
		return 0, 0, nil, err
	}
	return s.Size, s.Envelope, s.Fill, nil
}

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
func (c *Writer) WriteObject(ctx context.Context, a Attempt, name string, parts ...Part) (format.Written, error) {
	w, err := c.writeObject(ctx, a, name, parts)
	if err != nil {
		return w, fmt.Errorf("write %s of generation %v of job %s: %w", name, a.Generation, a.Run.Job, err)
	}
	return w, nil
}

// writeObject writes an object of an attempt. What is encrypted once more has other bytes, and a COMMIT may name what an earlier try
// has left. An upload that completes would replace it. So what is there is taken, and what is written has a name of its own.
func (c *Writer) writeObject(ctx context.Context, a Attempt, name string, parts []Part) (format.Written, error) {
	n := format.Name{Kind: format.ShardKind, Generation: a.Generation, Write: a.Write, Shard: name}
	if c.keys.Seals() {
		if w, ok, err := c.earlier(ctx, a, name, parts); err != nil || ok {
			return w, err
		}
		n.Seal = format.NewSeal(c.keys.Tag())
	}
	return c.write(ctx, a.Run, n, parts)
}

// Tries lists what lies there under the name of an object of an attempt, encrypted or not.
func (c *Writer) Tries(ctx context.Context, a Attempt, name string) (list []format.Name, err error) {
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
func (c *Writer) earlier(ctx context.Context, a Attempt, name string, parts []Part) (w format.Written, ok bool, err error) {
	list, err := c.Tries(ctx, a, name)
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
func (c *Writer) WriteGroup(ctx context.Context, a Attempt, p Part) (format.Written, error) {
	return c.WriteObject(ctx, a, groupName(p.Manifest.Part), p)
}

// isWritten looks at an object that somebody may have written: whether it has these parts and no others, and every byte of them. It is
// read, whatever checksum the store has of it: that may be of something else than all of its bytes.
func (c *Writer) isWritten(ctx context.Context, r find.Run, n format.Name, parts []replica.Manifest) (w format.Written, err error) {
	key := r.Key(n)
	info, err := c.objects.Stat(ctx, key)
	if err != nil {
		return w, err
	}
	w.File = format.File{Key: n.String(), Bytes: uint64(info.Size)}
	if w.File.Header, w.File.Sealed, err = c.headBytes(ctx, key, info.Size); err != nil {
		return w, err
	}
	o, s, err := c.read.Object(ctx, r, w.File, w.File.Key)
	if err != nil {
		return w, err
	}
	for _, m := range parts {
		if p, ok := o.Part(m.Part); !ok || len(o.Parts) != len(parts) || p.Manifest.Root != m.Root || p.Manifest.Job != r.ID {
			return w, fmt.Errorf("%s: %w: it has not %v with root %v", key, store.ErrCorrupt, m.Part, m.Root)
		}
	}
	if w.File.SHA256, err = c.read.ReadFile(ctx, r, w.File, w.File.Key, o, s, nil, func(uint64) {}); err == nil {
		w.Object = o
	}
	return w, err
}

// headBytes is how long the header is of what lies in a file, with its length field, and how much lies before what is encrypted where the
// catalog has recipients.
func (c *Writer) headBytes(ctx context.Context, key string, size int64) (n, envelope uint64, err error) {
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
func (c *Writer) firstOf(b []byte, size uint64) (first []byte, envelope uint64, err error) {
	s, err := c.read.Unlock(b, size)
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

// write uploads one object.
func (c *Writer) write(ctx context.Context, r find.Run, n format.Name, parts []Part) (w format.Written, err error) {
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
