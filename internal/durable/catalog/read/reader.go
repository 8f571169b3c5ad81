// Package read reads generations that were found: their parts chunk by chunk, their tensors, the files that their run carries, or all of
// them to verify them. Each byte is checked. It changes nothing.
//
// A Reader may be used by several goroutines.
package read

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Reader reads the generations of one root.
type Reader struct {
	objects *objects.Reader
	find    *find.Finder
	keys    *sealed.Keys

	mu     sync.Mutex
	frozen map[string]format.Written // by the key of the first twin: frozen files that were seen whole; guarded by mu
	backed map[string]bool           // frozen files, each twin by its key, that were read back whole; guarded by mu
}

// New makes a reader. Without keys it reads nothing of what is encrypted but the digests of its files.
func New(o *objects.Reader, f *find.Finder, keys *sealed.Keys) *Reader {
	return &Reader{objects: o, find: f, keys: keys, frozen: make(map[string]format.Written), backed: make(map[string]bool)}
}

// Object reads the header of a file. The second is what decrypts ranges of the file; nil: it is not encrypted.
func (c *Reader) Object(ctx context.Context, r find.Run, f format.File, key string) (*format.Object, *sealed.File, error) {
	if n := f.Header; n < 8 || n > f.Plain() {
		return nil, nil, fmt.Errorf("%s: a header of %d bytes in %d", key, n, f.Plain())
	}
	head, s, err := c.head(ctx, r.Under(key), f)
	if errors.Is(err, find.ErrLocked) && f.SHA256 != "" {
		if werr := c.objects.Whole(ctx, r.Under(key), f, true); werr != nil { // it was changed: the key is not what is missing
			err = werr
		}
	}
	if err != nil {
		return nil, nil, damage.Lying(key, err)
	}
	o, err := format.ParseObject(head, f.Plain())
	if err != nil {
		return nil, nil, damage.New(key, damage.WholeFile, "its header is damaged", fmt.Errorf("%s: %w", key, err))
	}
	return o, s, nil
}

// OpenShard opens a part of a generation. Bytes are checked as they are read; of a frozen part either twin serves. Calls of the reader end
// with ctx.
func (c *Reader) OpenShard(ctx context.Context, f find.Found, part replica.Part) (ShardReader, error) {
	rd, err := c.open(ctx, f, part)
	if err != nil {
		return nil, fmt.Errorf("open %v of generation %v of job %s: %w", part, f.Generation, f.Job, err)
	}
	return rd, nil
}

// Open is OpenShard for those that say themselves what they open.
func (c *Reader) Open(ctx context.Context, f find.Found, part replica.Part) (ShardReader, error) {
	rd, err := c.open(ctx, f, part)
	if err != nil {
		return nil, err
	}
	return rd, nil
}

func (c *Reader) open(ctx context.Context, f find.Found, part replica.Part) (*shard, error) {
	if err := f.Readable(); err != nil {
		return nil, err
	}
	at, ok := f.Index.Part(part)
	if !ok {
		return nil, errors.New("the index does not list it")
	}
	file := f.Index.Files[at.File]
	o, s, err := c.Object(ctx, f.Run, file, file.Key)
	if err == nil {
		err = c.belongs(f, file, o)
	}
	if err != nil && file.Twin != "" {
		c.Doubt(f.Run, format.ParseName(file.Key))
		var twinErr error
		if o, s, twinErr = c.Object(ctx, f.Run, file, file.Twin); twinErr == nil {
			twinErr = c.belongs(f, file, o)
		}
		if twinErr == nil {
			err = nil
			file.Key, file.Twin = file.Twin, ""
		}
	}
	if err != nil {
		return nil, err
	}
	p, _ := o.Part(part)
	if part.Kind == replica.FrozenPart {
		// The file is every cluster's and every generation's. Whoever loads a part wants to know of which it is.
		p.Manifest.Cluster, p.Manifest.Generation = f.Cluster, f.Generation
	}
	rd := c.reader(f.Run, file, s, o.Head, p)
	rd.ctx = ctx
	if size := p.Layout.Size(); size > 0 {
		rd.ahead = c.ahead(ctx, f.Run.Under(file.Key), s, rd.data, size)
	}
	return rd, nil
}

// belongs reports whether a file has the parts that its generation's index lists in it, and no others.
func (c *Reader) belongs(f find.Found, file format.File, o *format.Object) error {
	n := 0
	for _, at := range f.Index.Parts {
		if f.Index.Files[at.File].Key != file.Key {
			continue
		}
		n++
		p, ok := o.Part(at.Part)
		if !ok || p.Manifest.Root != at.Root || p.Manifest.Job != f.Commit.Run || at.Part.Kind != replica.FrozenPart &&
			p.Manifest.Generation != f.Generation {
			return damage.Lying(file.Key, fmt.Errorf("%w: it has not %v with root %v", store.ErrCorrupt, at.Part, at.Root))
		}
	}
	if n != len(o.Parts) || o.Head != file.Header {
		return damage.Lying(file.Key, fmt.Errorf("%w: it has %d parts, the index lists %d", store.ErrCorrupt, len(o.Parts), n))
	}
	return nil
}

// readRange reads what lies in a file from byte off on; s is nil where it is not encrypted. One range of the file is read for it.
func (c *Reader) readRange(ctx context.Context, key string, s *sealed.File, off uint64, b []byte) error {
	if s == nil {
		return c.objects.Range(ctx, key, int64(off), b)
	}
	from, n := s.Span(off, uint64(len(b)))
	span := make([]byte, n)
	if err := c.objects.Range(ctx, key, int64(from), span); err != nil {
		return err
	}
	return damage.Corrupted(s.Decrypt(b, off, span))
}

// Unlock opens a file. One that no key opens may have been changed, or be whole and encrypted to others, which its digest shows. It counts
// as damaged no sooner, since what is damaged is deleted.
func (c *Reader) Unlock(first []byte, size uint64) (*sealed.File, error) {
	s, err := c.keys.Open(first, size)
	if errors.Is(err, find.ErrLocked) {
		err = fmt.Errorf("%w: durable_recipients was another on the node that wrote it: add the key of that to durable_identities "+
			"(--identity)", err)
	}
	return s, damage.Corrupted(err)
}

// head reads the first bytes of what lies in a file, f.Header of them, with the file's envelope in one request.
func (c *Reader) head(ctx context.Context, key string, f format.File) (head []byte, s *sealed.File, err error) {
	first := f.Header
	if f.Sealed > 0 {
		from, n := sealed.Span(f.Plain(), f.Sealed, 0, f.Header)
		first = from + n
	}
	var b []byte
	err = c.objects.Again(ctx, func() error {
		b = make([]byte, first) // not used again after an error
		return c.objects.Range(ctx, key, 0, b)
	})
	if err != nil || f.Sealed == 0 {
		return b, nil, err
	}
	if s, err = c.Unlock(b, f.Bytes); err == nil && s.Envelope() != f.Sealed {
		err = fmt.Errorf("%w: %d bytes lie before what is encrypted, its writer said %d", store.ErrCorrupt, s.Envelope(), f.Sealed)
	}
	if err != nil {
		return nil, nil, err
	}
	head = make([]byte, f.Header)
	return head, s, damage.Corrupted(s.Decrypt(head, 0, b[f.Sealed:]))
}

// leastBlock is the least that one request brings, in bytes.
const leastBlock = 64 << 10

// OpenWithin is OpenShard for programs that read many parts at once: what it reads ahead stays within so many bytes, however few.
func (c *Reader) OpenWithin(ctx context.Context, f find.Found, part replica.Part, room int64) (ShardReader, error) {
	rd, err := c.open(ctx, f, part)
	if err != nil {
		return nil, fmt.Errorf("open %v of generation %v of job %s: %w", part, f.Generation, f.Job, err)
	}
	if rd.ahead != nil {
		rd.ahead.block = uint64(max(min(c.objects.Block, room/int64(c.objects.Lanes+1)), leastBlock))
	}
	return rd, nil
}

// Seen is a frozen part that was looked at and was whole, since the last read that failed.
func (c *Reader) Seen(r find.Run, n format.Name) (format.Written, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.frozen[r.Key(n)]
	return w, ok
}

// See remembers a frozen part that was looked at, and was whole.
func (c *Reader) See(r find.Run, n format.Name, w format.Written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen[r.Key(n)] = w
}

// Doubt has the next write of a frozen part look at what lies there.
func (c *Reader) Doubt(r find.Run, n format.Name) {
	n.Twin, n.Seal = 'a', ""
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.frozen, r.Key(n))
	clear(c.backed)
}
