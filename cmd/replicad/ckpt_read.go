package main

import (
	"context"
	"errors"

	"github.com/replicad/replicad/internal/durable/catalog"
)

// one finds the generation that is meant. What was passed over on the way is told.
func (c ckpt) one(ctx context.Context, w *where) (f catalog.Found, err error) {
	if w.at != nil {
		return w.named(ctx)
	}
	f, passed, err := w.newest(ctx)
	for _, s := range passed {
		printf(c.std.err, "passed over step %d: %s\n", s.Generation.Step, line(s.Reason))
	}
	return f, err
}

// finds is how often a generation is looked for, at most: a job that writes often may delete the newest one between the look and the read.
const finds = 20

// again tries for as long as what was found is deleted beside the try (catalog.ErrNone). Another try finds another generation, where none is named by its step.
func (w *where) again(try func() error) (err error) {
	for range finds {
		if err = try(); w.at != nil && w.at.stays() || !errors.Is(err, catalog.ErrNone) {
			break
		}
	}
	return err
}

// read finds the generation that is meant, and has it read. Where it was deleted meanwhile, or read meets damage in it, read is called again with the next one
// that is meant.
func (c ckpt) read(ctx context.Context, w *where, read func(f catalog.Found) error) (err error) {
	for {
		var f catalog.Found
		err = w.again(func() error {
			f, err = c.one(ctx, w)
			if err != nil {
				f.Index = nil
				return err
			}
			return read(f)
		})
		if err == nil || f.Index == nil || !c.remembers(ctx, w, f, err) || w.at != nil && w.at.stays() {
			return err
		}
	}
}

// remembers records that a read of a generation has met damage, and tells of it, once. False: it was read again and is whole, or its damage is known.
func (c ckpt) remembers(ctx context.Context, w *where, f catalog.Found, met error) bool {
	if w.bad[f.Where()] {
		return false
	}
	bad, unrecorded := w.cat.Remember(ctx, f, met)
	if bad == nil {
		return false
	}
	if w.bad == nil {
		w.bad = make(map[string]bool)
	}
	w.bad[f.Where()] = true
	printf(c.std.err, "step %d of %s is damaged, and counts for nothing: %s\n", f.Generation.Step, f.Job, line(catalog.Plain(bad)))
	if unrecorded != nil {
		printf(c.std.err, "not recorded: %s\n", line(unrecorded.Error()))
	}
	return true
}

// leased is read of a generation that is kept meanwhile. refused is told where the store takes no lease; nil: nobody is.
func (c ckpt) leased(ctx context.Context, w *where, why string, refused func(error), read func(f catalog.Found) error) error {
	return c.read(ctx, w, func(f catalog.Found) error {
		return w.cat.Leased(ctx, f, why, refused, func() error { return read(f) })
	})
}
