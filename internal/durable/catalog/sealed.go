package catalog

import (
	"context"
	"fmt"
	"maps"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
)

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
