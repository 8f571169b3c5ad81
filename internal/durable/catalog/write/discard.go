package write

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
)

// Unused is a number of a write, from least on, of which no object lies in a generation: what a copy that broke off left stays its own.
func (c *Writer) Unused(ctx context.Context, a Attempt, least uint64) (uint64, error) {
	prefix := a.Run.Under(format.StepName(a.Generation)) + "/"
	err := c.objects.List(ctx, prefix, "", func(info store.Info) error {
		least = max(least, format.ParseName(strings.TrimPrefix(info.Key, a.Run.Prefix())).Write+1)
		return nil
	})
	return least, err
}

// Discard removes objects of an attempt that was given up, by their names. Its caller knows that none of them is on its way.
//
// A COMMIT of the attempt may still come: its writer was asked for it, and nobody knows what became of him. It needs an index, put where
// none is; so an entry is put in the index's place first. Where an index is there already the objects stay, and Sweep removes what no
// COMMIT names. The entry stays too, until then: without it an index would find its place again.
func (c *Writer) Discard(ctx context.Context, a Attempt, names []string) error {
	if err := c.discard(ctx, a, names); err != nil {
		return fmt.Errorf("remove what write %d left of generation %v of job %s: %w", a.Write, a.Generation, a.Run.Job, err)
	}
	return nil
}

func (c *Writer) discard(ctx context.Context, a Attempt, names []string) error {
	var keys []string
	for _, name := range names {
		list, err := c.Tries(ctx, a, name)
		if err != nil {
			return err
		}
		for _, n := range list {
			keys = append(keys, a.Run.Key(n))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	entry := format.Trash{Generation: a.Generation, Who: c.who, Why: "this write was given up", At: c.now().Unix(), Nonce: rand.Text()}
	b, err := entry.Seal()
	if err != nil {
		return err
	}
	there, err := c.objects.PutOnce(ctx, a.Run.Key(format.Name{Kind: format.IndexKind, Generation: a.Generation, Write: a.Write}), b)
	if there != nil {
		if _, err := format.ParseTrash(there, a.Generation); err != nil {
			return nil //nolint:nilerr // an index: its COMMIT may be there, or come
		}
	} else if err != nil {
		return err
	}
	for _, key := range keys {
		if err := c.objects.Remove(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// LastWrite is the highest number of a write that an object of the run has in its name, whether or not a COMMIT names it.
func (c *Writer) LastWrite(ctx context.Context, r find.Run) (n uint64, err error) {
	prefix := r.Prefix()
	err = c.objects.List(ctx, prefix+format.StepPrefix, "", func(info store.Info) error {
		n = max(n, format.ParseName(strings.TrimPrefix(info.Key, prefix)).Write)
		return nil
	})
	return n, err
}
