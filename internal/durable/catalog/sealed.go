package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
)

// readRange reads what lies in a file from byte off on; s is nil where it is not encrypted. One range of the file is read for it.
func (c *Catalog) readRange(ctx context.Context, key string, s *sealed.File, off uint64, b []byte) error {
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

// unlock opens a file. One that no key opens may have been changed, or be whole and encrypted to others: its digest tells, and it counts as
// damaged no sooner, since what is damaged is deleted.
func (c *Catalog) unlock(first []byte, size uint64) (*sealed.File, error) {
	s, err := c.keys.Open(first, size)
	if errors.Is(err, find.ErrLocked) {
		err = fmt.Errorf("%w: durable_recipients was another on the node that wrote it: add the key of that to durable_identities (--identity)", err)
	}
	return s, damage.Corrupted(err)
}

// head reads the first bytes of what lies in a file, f.Header of them, with the file's envelope in one request.
func (c *Catalog) head(ctx context.Context, key string, f format.File) (head []byte, s *sealed.File, err error) {
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
	if s, err = c.unlock(b, f.Bytes); err == nil && s.Envelope() != f.Sealed {
		err = fmt.Errorf("%w: %d bytes lie before what is encrypted, its writer said %d", store.ErrCorrupt, s.Envelope(), f.Sealed)
	}
	if err != nil {
		return nil, nil, err
	}
	head = make([]byte, f.Header)
	return head, s, damage.Corrupted(s.Decrypt(head, 0, b[f.Sealed:]))
}

// sealing has fill's bytes encrypted on their way into a file, where the catalog has recipients: how large the file is, and how much lies
// before them.
func (c *Catalog) sealing(size uint64, fill func(b []byte) error) (stored, envelope uint64, sealing func(b []byte) error, err error) {
	if !c.keys.Seals() {
		return size, 0, fill, nil
	}
	s, err := c.keys.Seal(size, fill)
	if err != nil {
		return 0, 0, nil, err
	}
	return s.Size, s.Envelope, s.Fill, nil
}

// unsaid leaves out of what a run or a generation says of its program what goes to no store that others read: its arguments, where the
// catalog encrypts. A token, or the address of something, is among them sooner or later.
func (c *Catalog) unsaid(said map[string]string) map[string]string {
	if _, there := said[format.Arguments]; !there || !c.keys.Seals() {
		return said
	}
	said = maps.Clone(said)
	delete(said, format.Arguments)
	return said
}

// Downgrades is an error where a catalog would write without encryption for a job whose newest generation is encrypted.
func (c *Catalog) Downgrades(ctx context.Context, job string) error {
	if c.keys.Seals() {
		return nil
	}
	list, err := c.Finder.List(ctx, job)
	if err != nil {
		return err
	}
	for _, l := range list { // the newest first
		if l.State == find.Unfinished {
			continue
		}
		if l.Row.Sealed {
			return fmt.Errorf("step %d of job %s in %s is encrypted, and the next one would not be: name to whom in REPLICAD_RECIPIENTS, or give it another job", l.Generation.Step, job, c.Finder.URL())
		}
		break
	}
	return nil
}

// putIndex puts the index of an attempt, and says what COMMIT is to say. What is encrypted anew has other bytes: where an earlier try has
// put the very index, COMMIT names that.
func (c *Catalog) putIndex(ctx context.Context, a Attempt, fleet Fleet, said format.Commit, x *format.Index) (com *format.Commit, b []byte,
	err error) {
	plain, err := x.Seal()
	if err != nil {
		return nil, nil, err
	}
	xb := plain
	if c.keys.Seals() {
		if xb, err = c.keys.SealBytes(plain); err != nil {
			return nil, nil, err
		}
	}
	if com, b, err = c.describe(a, fleet, said, x, plain, xb); err != nil {
		return nil, nil, err
	}
	there, err := c.objects.PutOnce(ctx, a.Run.Under(com.Index.Key), xb)
	if there != nil && c.keys.Seals() {
		if got, oerr := c.keys.OpenBytes(there); oerr == nil && string(got) == string(plain) {
			return c.describe(a, fleet, said, x, plain, there)
		}
	}
	if there != nil {
		return nil, nil, fmt.Errorf("index of write %d: %w", a.Write, ErrCommitted)
	}
	return com, b, err
}
