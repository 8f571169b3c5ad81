package ckpt

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/replica"
)

// Row is a line of `ckpt ls --json`.
type Row struct {
	Job       string                   `json:"job"`
	Run       string                   `json:"run"`
	Step      replica.Step             `json:"step"`
	Epoch     replica.Epoch            `json:"epoch"`
	Position  replica.Position         `json:"position"`
	State     catalog.State            `json:"state"`
	Why       string                   `json:"why,omitempty"`
	Bytes     uint64                   `json:"bytes"`
	Written   *time.Time               `json:"written,omitempty"`
	Read      *time.Time               `json:"read,omitempty"`
	Metrics   map[string]format.Metric `json:"metrics,omitempty"`
	Loader    *uint64                  `json:"loader_epoch,omitempty"`
	Pinned    []string                 `json:"pinned,omitempty"`
	Keep      string                   `json:"keep,omitempty"`
	Stripped  bool                     `json:"stripped,omitempty"`
	Encrypted bool                     `json:"encrypted,omitempty"`
}

func RowOf(l catalog.Listed) Row {
	r := Row{Job: l.Run.Job, Run: l.Run.Run, Step: l.Generation.Step, Epoch: l.Generation.Epoch, Position: l.Row.Position, State: l.State,
		Why:   l.Why,
		Bytes: l.Row.Bytes, Metrics: l.Row.Metrics, Loader: l.Row.Loader, Keep: l.Row.Keep, Stripped: l.Row.Stripped, Encrypted: l.Row.Sealed}
	if l.Row.At > 0 {
		at := time.UnixMilli(l.Row.At)
		r.Written = &at
	}
	if !l.Read.IsZero() {
		r.Read = &l.Read
	}
	for _, p := range l.Pins {
		r.Pinned = append(r.Pinned, p.Who)
	}
	return r
}

// List are the generations that are meant, or the one that is named.
func List(ctx context.Context, w *place.Place) ([]Row, error) {
	list, err := w.List(ctx)
	if err != nil {
		return nil, err
	}
	if w.At != nil {
		l, err := w.Listed(ctx)
		if err != nil {
			return nil, err
		}
		list = []catalog.Listed{l}
	}
	if err := w.Known(ctx, list); err != nil {
		return nil, err
	}
	rows := []Row{}
	for _, l := range list {
		rows = append(rows, RowOf(l))
	}
	return rows, nil
}

// Logs are the newest lines of each job's log, so many at most, and the jobs in order.
func Logs(ctx context.Context, w *place.Place, most int) (all map[string][]format.Log, jobs []string, err error) {
	if jobs, err = w.Jobs(ctx); err != nil {
		return nil, nil, err
	}
	all = make(map[string][]format.Log)
	for _, job := range jobs {
		lines, unreadable, err := w.Cat.Logs(ctx, job, most)
		if err != nil {
			return nil, nil, err
		}
		all[job] = append([]format.Log{}, lines...)
		if unreadable > 0 {
			console.Printf(w.Notes, "job %s: %d lines of the log cannot be read\n", job, unreadable)
		}
	}
	return all, jobs, nil
}
