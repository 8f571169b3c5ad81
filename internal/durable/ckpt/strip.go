package ckpt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/durable/retain"
)

// ended refuses runs that a fleet may still write: by the age of what it wrote last, since the store knows nothing of fleets.
func ended(ctx context.Context, w *place.Place, jobs []string, idle time.Duration) error {
	if idle <= 0 {
		return nil // somebody knows that they have ended
	}
	for _, job := range jobs {
		runs, err := w.Cat.Runs(ctx, job)
		if err != nil {
			return err
		}
		for _, r := range runs {
			if w.Run != "" && r.Run != w.Run {
				continue
			}
			sign, err := w.Cat.Sign(ctx, r)
			if err != nil {
				return err
			}
			if sign.What != "" && (sign.At.IsZero() || time.Since(sign.At) < idle) {
				return fmt.Errorf("run %s of job %s may be live: %s is %s old, and a run counts as finished after %v without one. "+
					"Nothing was changed. Name a run that has ended (%s/%s/RUN), or, where this one has, say so with --idle 0s",
					r.Run, job, sign.What, console.Age(sign.At), idle, w.Cat.URL(), job)
			}
		}
	}
	return nil
}

// stripped strips a generation that stays, and says what became of it.
func stripped(ctx context.Context, w *place.Place, l catalog.Listed, g retain.Generation, why string, dry bool) (row StripRow,
	err error) {
	switch {
	case l.Row.Stripped:
		return StripRow{What: "stripped before"}, nil
	case g.Pinned || g.Open:
		return StripRow{What: "not stripped: it is pinned"}, nil
	case l.State == catalog.Damaged:
		return StripRow{What: "not stripped: it failed a read"}, nil
	}
	f, err := w.Cat.Get(ctx, l.Run, l.Generation)
	if err != nil {
		return StripRow{What: "NOT stripped"}, err
	}
	freed, err := w.Cat.Strip(ctx, f, why, dry)
	switch {
	case errors.Is(err, catalog.ErrPinned):
		return StripRow{What: "not stripped: it is pinned"}, nil
	case errors.Is(err, catalog.ErrNothing):
		return StripRow{What: "not stripped: " + catalog.ErrNothing.Error()}, nil
	case err != nil:
		return StripRow{What: "NOT stripped"}, err
	case dry:
		return StripRow{"would strip", freed}, nil
	}
	return StripRow{"stripped", freed}, nil
}

// StripRow is what became of the optimizer's state of a generation.
type StripRow struct {
	What  string `json:"what"`
	Freed uint64 `json:"freed_bytes,omitempty"`
}

func (r StripRow) String() string {
	if r.Freed == 0 {
		return r.What
	}
	return fmt.Sprintf("%s, %s of optimizer state", r.What, console.Size(r.Freed))
}
