package ckpt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
)

// Copy copies the generation that is meant, or all that are whole, the newest last. done learns of each that is there now, and of each
// that was deleted meanwhile.
func Copy(ctx context.Context, w *place.Place, to *catalog.Catalog, anew Copying, done func(Verdict)) error {
	noted := false
	one := func(f catalog.Found) error {
		if f.Sealed == nil && len(anew.Recipients) == 0 && !anew.Decrypt && !noted && os.Getenv(place.RecipientsVariable) != "" {
			noted = true
			console.Printf(w.Notes,
				"note: step %d of %s is not encrypted, nor is its copy: cp does not read %s; --recipient encrypts a copy\n",
				f.Generation.Step, f.Job, place.RecipientsVariable)
		}
		mended, err := copy1(ctx, w, f, to, anew, NewMeter(w.Notes, fmt.Sprintf("copy of step %d of %s", f.Generation.Step, f.Job)))
		if err != nil {
			return err
		}
		if mended {
			console.Printf(w.Notes, "step %d of %s in %s was damaged: what was wrong is written anew, and all of it was read\n",
				f.Generation.Step, f.Job, to.URL())
		}
		v := verdictOf(f)
		v.Good = true
		done(v)
		return nil
	}
	if !anew.All {
		return w.Read(ctx, one)
	}
	return oldestFirst(ctx, w, func(f catalog.Found) error {
		err := one(f)
		if errors.Is(err, catalog.ErrNone) {
			v := verdictOf(f)
			v.Deleted = true
			done(v)
		}
		return err
	}, one)
}

// oldestFirst calls each with every generation that is whole. The newest is the last: until it is there, what is there is older and whole.
// Of one that was deleted meanwhile each returns catalog.ErrNone; where that is the newest of a job there is a newer one, with which newest
// is called.
func oldestFirst(ctx context.Context, w *place.Place, each, newest func(f catalog.Found) error) error {
	gone := make(map[string]bool) // of a job's newest
	found, _, err := w.Every(ctx)
	if err != nil {
		return err
	}
	for _, f := range slices.Backward(found) {
		err := each(f)
		if err != nil && w.Remembers(ctx, f, err) {
			continue
		}
		if gone[f.Job] = errors.Is(err, catalog.ErrNone); err != nil && !gone[f.Job] {
			return err
		}
	}
	for _, job := range slices.Sorted(maps.Keys(gone)) {
		if of := *w; gone[job] {
			of.Job, of.At = job, nil
			if err := of.Read(ctx, newest); err != nil {
				return err
			}
		}
	}
	return nil
}

// Copying is what is copied, and how it is written anew.
type Copying struct {
	All        bool
	Decrypt    bool
	Recipients []string
}

// Keys are to whom the copy is encrypted, and what reads a former one that is there; nil: the copy is as what it is of, or plain.
func (r Copying) Keys(ring *place.Keyring) (*sealed.Keys, error) {
	if r.Decrypt && len(r.Recipients) > 0 {
		return nil, usage.Wrong(errors.New("--decrypt makes a plain copy, --recipient an encrypted one: give one of them"))
	}
	if len(r.Recipients) == 0 {
		return nil, nil
	}
	ids, err := ring.Identities()
	if err != nil {
		return nil, err
	}
	k, err := sealed.New(r.Recipients, ids)
	if err != nil {
		return nil, usage.Wrong(fmt.Errorf("--recipient: %w", err))
	}
	return k, nil
}

// copy1 copies one generation, and leaves a line in the target's log. mended: what was there already was damaged, and is written anew.
func copy1(ctx context.Context, w *place.Place, f catalog.Found, to *catalog.Catalog, anew Copying, far *Meter) (mended bool,
	err error) {
	how, moving := "", far.written(ctx, f.Bytes)
	if f.Sealed != nil && anew.Decrypt || len(anew.Recipients) > 0 {
		how = map[bool]string{true: ", decrypted", false: ", encrypted to others"}[anew.Decrypt]
		err = w.Cat.CopyAnew(moving, f, to)
	} else {
		mended, err = w.Cat.Copy(moving, f, to)
	}
	if err != nil {
		return mended, err
	}
	why := "from " + w.Cat.URL() + how
	if mended {
		why += "; what was damaged here was written anew"
	}
	return mended, to.Log(ctx, f.Job, format.Log{Verb: "cp", Run: f.Run.Run, Generations: []replica.Generation{f.Generation}, Why: why})
}
