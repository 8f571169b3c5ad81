package place

import (
	"context"
	"errors"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
)

// One finds the generation that is meant. What was passed over on the way is a note.
func (p *Place) One(ctx context.Context) (f catalog.Found, err error) {
	if p.At != nil {
		return p.Named(ctx)
	}
	f, passed, err := p.Newest(ctx)
	for _, s := range passed {
		console.Printf(p.Notes, "passed over step %d: %s\n", s.Generation.Step, console.Line(s.Reason))
	}
	return f, err
}

// finds is how often a generation is looked for, at most: a job that writes often may delete the newest one between the look and the read.
const finds = 20

// Again tries for as long as what was found is deleted beside the try (catalog.ErrNone). Another try finds another generation, where none
// is named by its step.
func (p *Place) Again(try func() error) (err error) {
	for range finds {
		if err = try(); p.At != nil && p.At.stays() || !errors.Is(err, catalog.ErrNone) {
			break
		}
	}
	return err
}

// Read finds the generation that is meant, and has it read. Where it was deleted meanwhile, or read meets damage in it, read is called
// again with the next one
// that is meant.
func (p *Place) Read(ctx context.Context, read func(f catalog.Found) error) (err error) {
	for {
		var f catalog.Found
		err = p.Again(func() error {
			f, err = p.One(ctx)
			if err != nil {
				f.Index = nil
				return err
			}
			return read(f)
		})
		if err == nil || f.Index == nil || !p.Remembers(ctx, f, err) || p.At != nil && p.At.stays() {
			return err
		}
	}
}

// Remembers records that a read of a generation has met damage, and notes it once. False: it was read again and is whole, or its damage
// is known.
func (p *Place) Remembers(ctx context.Context, f catalog.Found, met error) bool {
	if p.bad[f.Where()] {
		return false
	}
	bad, unrecorded := p.Cat.Remember(ctx, f, met)
	if bad == nil {
		return false
	}
	if p.bad == nil {
		p.bad = make(map[string]bool)
	}
	p.bad[f.Where()] = true
	console.Printf(p.Notes, "step %d of %s is damaged, and counts for nothing: %s\n", f.Generation.Step, f.Job,
		console.Line(catalog.Plain(bad)))
	if unrecorded != nil {
		console.Printf(p.Notes, "not recorded: %s\n", console.Line(unrecorded.Error()))
	}
	return true
}

// Leased is read of a generation that is kept meanwhile. refused is called where the store takes no lease, unless it is nil.
func (p *Place) Leased(ctx context.Context, why string, refused func(error), read func(f catalog.Found) error) error {
	return p.Read(ctx, func(f catalog.Found) error {
		return p.Cat.Leased(ctx, f, why, refused, func() error { return read(f) })
	})
}
