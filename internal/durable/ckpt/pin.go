package ckpt

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/replica"
)

// Pin keeps the generation that is named: until then, or for good.
func Pin(ctx context.Context, w *place.Place, who, why string, until time.Time) (catalog.Listed, error) {
	return changed(ctx, w, "pin", why, func(l catalog.Listed) error { return w.Cat.Pin(ctx, l.Run, l.Generation, who, why, until) })
}

// Unpin takes somebody's pin from the generation that is named.
func Unpin(ctx context.Context, w *place.Place, who string) (catalog.Listed, error) {
	return changed(ctx, w, "unpin", "", func(l catalog.Listed) error { return w.Cat.Unpin(ctx, l.Run, l.Generation, who) })
}

// changed changes a pin of the generation that is named, and leaves a line in the log.
func changed(ctx context.Context, w *place.Place, verb, why string, change func(l catalog.Listed) error) (catalog.Listed, error) {
	l, err := w.Listed(ctx)
	if err != nil {
		return l, err
	}
	if err := change(l); err != nil {
		return l, err
	}
	return l, w.Cat.Log(ctx, l.Run.Job, format.Log{Verb: verb, Run: l.Run.Run, Generations: []replica.Generation{l.Generation}, Why: why})
}
