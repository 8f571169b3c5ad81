package ckpt

import (
	"context"
	"errors"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/replica"
)

// Wait looks for a generation beyond a step until there is one.
func Wait(ctx context.Context, c place.Finder, arg string, step replica.Step, every time.Duration) (row Row, err error) {
	for {
		l, err := beyond(ctx, c, arg, step)
		if !errors.Is(err, catalog.ErrNone) {
			return RowOf(l), err
		}
		t := time.NewTimer(every)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return row, context.Cause(ctx)
		}
	}
}

// beyond finds the newest generation beyond a step; ErrNone: there is none yet.
func beyond(ctx context.Context, c place.Finder, arg string, step replica.Step) (l catalog.Listed, err error) {
	w, err := c.Find(ctx, arg, "")
	if err != nil {
		return l, err
	}
	defer w.Close()
	list, err := w.List(ctx)
	if err != nil {
		return l, err
	}
	for _, l := range list {
		if l.Generation.Step <= step || l.State != catalog.Good && l.State != catalog.Unread {
			continue
		}
		if _, err := w.Cat.Get(ctx, l.Run, l.Generation); err == nil {
			return l, nil
		}
	}
	return l, catalog.ErrNone
}
