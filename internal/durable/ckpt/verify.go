// Package ckpt is what the verbs of `replicad ckpt` do with the generations of a place: list, verify, compare, pin, prune, strip, copy,
// export. It serves them to other programs, and finds what a new job begins with. A verb has flags, a call of this package, and what it
// prints of the result. What is to be known on the way goes to the place's notes as it happens.
package ckpt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Verdict is a line of `ckpt verify --json`.
type Verdict struct {
	Job     string          `json:"job"`
	Run     string          `json:"run"`
	Step    replica.Step    `json:"step"`
	Epoch   replica.Epoch   `json:"epoch"`
	Good    bool            `json:"good"`
	Deleted bool            `json:"deleted,omitempty"` // meanwhile: nothing is known of it, and nothing is wrong
	Bytes   uint64          `json:"bytes"`
	Faults  []catalog.Fault `json:"faults,omitempty"`
	Error   string          `json:"error,omitempty"`
}

// verdictOf is one of a generation of which nothing is known yet.
func verdictOf(f catalog.Found) Verdict {
	return Verdict{Job: f.Job, Run: f.Run.Run, Step: f.Generation.Step, Epoch: f.Generation.Epoch, Bytes: f.Bytes}
}

// Reading are the flags of verify.
type Reading struct{ All, Repair, Record, Note bool }

// Verify reads what is meant, and returns what came of each. It begins again where what it found is deleted meanwhile.
func Verify(ctx context.Context, w *place.Place, h Reading) (out []Verdict, err error) {
	err = w.Again(func() error {
		out, err = verified(ctx, w, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func verified(ctx context.Context, w *place.Place, h Reading) (out []Verdict, err error) {
	var todo []catalog.Found
	out = []Verdict{}
	take := func(skipped []catalog.Skipped) {
		for _, s := range skipped {
			if s.Whole != nil {
				todo = append(todo, *s.Whole) // it may have been mended since
			} else if s.State == catalog.Damaged {
				out = append(out,
					Verdict{Job: s.Run.Job, Run: s.Run.Run, Step: s.Generation.Step, Epoch: s.Generation.Epoch, Error: s.Reason})
				markSeen(ctx, w, s.Run, s.Generation, h.Record)
			}
		}
	}
	switch {
	case h.All:
		found, skipped, err := w.Every(ctx)
		if err != nil {
			return nil, err
		}
		todo = found
		take(skipped)
	case w.At != nil:
		found, err := w.Named(ctx)
		if l, lerr := w.Listed(ctx); lerr == nil && catalog.IsDamage(err) {
			markSeen(ctx, w, l.Run, l.Generation, h.Record)
		}
		if err != nil {
			return nil, err
		}
		todo = append(todo, found)
	default:
		found, passed, err := w.Newest(ctx)
		if take(passed); err == nil {
			todo = append(todo, found)
		} else if len(todo) == 0 {
			return nil, err
		}
	}
	for _, f := range todo {
		v, err := verify1(ctx, w, f, h)
		if v.Deleted = h.All && errors.Is(err, catalog.ErrNone); err != nil && !v.Deleted {
			return nil, err
		}
		if out = append(out, v); v.Good && !h.All {
			break
		}
	}
	return out, nil
}

// markSeen records damage that was seen without a read.
func markSeen(ctx context.Context, w *place.Place, r catalog.Run, g replica.Generation, record bool) {
	if !record {
		return
	}
	if err := w.Cat.MarkSeen(ctx, r, g); err != nil {
		console.Printf(w.Notes, "not recorded: %v\n", err)
	}
}

// verify1 reads one generation, and records what came of it where the store takes that.
func verify1(ctx context.Context, w *place.Place, found catalog.Found, h Reading) (v Verdict, err error) {
	v = verdictOf(found)
	var progress func(read, of uint64)
	if h.Note {
		progress = tenths(w.Notes, fmt.Sprintf("step %d", v.Step))
	}
	read := func() error {
		v, err = reads(ctx, w, found, v, progress, h)
		return err
	}
	if !h.Record {
		return v, read()
	}
	err = w.Cat.Leased(ctx, found, "ckpt verify", func(err error) {
		if errors.Is(err, store.ErrRefused) {
			h.Record = false // read alone is allowed here
			console.Printf(w.Notes, "not recorded: %v\n", err)
		}
	}, read)
	return v, err
}

func reads(ctx context.Context, w *place.Place, found catalog.Found, v Verdict, progress func(read, of uint64), h Reading) (Verdict,
	error) {
	faults, bad := w.Cat.Verify(ctx, found, progress)
	if ctx.Err() != nil {
		return v, context.Cause(ctx)
	}
	v.Faults, v.Good = faults, bad == nil
	if bad != nil {
		if len(faults) == 0 {
			return v, bad // the store did not answer: nothing is known of the generation
		}
		v.Error = bad.Error()
	}
	if h.Repair && len(faults) > 0 {
		if err := w.Cat.Repair(ctx, found, faults); err != nil {
			return v, err
		}
	}
	if h.Record {
		return v, w.Cat.MarkRead(ctx, found, bad)
	}
	return v, nil
}

// tenths notes how far a read is, each tenth of it.
func tenths(notes io.Writer, what string) func(read, of uint64) {
	var mu sync.Mutex
	told, began := uint64(0), time.Now()
	return func(read, of uint64) {
		mu.Lock()
		defer mu.Unlock()
		if tenth := read * 10 / max(of, 1); tenth > told {
			told = tenth
			console.Printf(notes, "%s: %d %% of %s, %s/s\n", what, 10*tenth, console.Size(of),
				console.Size(uint64(float64(read)/max(time.Since(began).Seconds(), 0.001))))
		}
	}
}

// Damaged is an error where a verdict is bad: of the state, or else of what lies beside it.
func Damaged(list []Verdict) error {
	bad, beside := 0, 0
	for _, v := range list {
		if !v.Good && !v.Deleted {
			bad++
		}
		if slices.ContainsFunc(v.Faults, func(f catalog.Fault) bool { return f.Beside }) {
			beside++
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d generations are damaged", bad, len(list))
	}
	if beside > 0 {
		return fmt.Errorf("of %d of %d generations the state is whole, and the files that their run carries are damaged", beside, len(list))
	}
	return nil
}
