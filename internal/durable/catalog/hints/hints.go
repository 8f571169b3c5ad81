// Package hints writes what saves requests, and the log for people: last.json, best.json, the summaries of runs. Nothing of it is believed,
// and what fails here costs requests.
package hints

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// Options say what hints go by.
type Options struct {
	Who, Host string // in the log
	Now       func() time.Time
	// Best is the metric that best.json goes by, empty for none; Largest: its largest value is the best.
	Best    string
	Largest bool
	// Unconditional: the store ignores conditions. There are no last.json and best.json then.
	Unconditional bool
}

// Hints writes the hints of one root.
type Hints struct {
	objects *objects.Writer
	who     string
	host    string
	now     func() time.Time
	best    string // the metric of best.json
	most    bool   // its largest value is the best
	weak    bool   // the store ignores conditions
}

// New makes what writes hints.
func New(o *objects.Writer, is Options) *Hints {
	return &Hints{objects: o, who: is.Who, host: is.Host, now: is.Now, best: is.Best, most: is.Largest, weak: is.Unconditional}
}

// maxSummary bounds the rows that the hint keeps: the newest.
const maxSummary = 1 << 14

// Hint writes what saves requests. What fails here costs requests.
func (c *Hints) Hint(ctx context.Context, r find.Run, com *format.Commit, b []byte) {
	if !c.weak { // the others of the name write them too
		c.objects.Note(c.hintLast(ctx, r, com, b))
		c.hintBest(ctx, r, com, b)
	}
	c.objects.Note(c.Summarize(ctx, r.Place, func(rows []format.Row) []format.Row {
		rows = slices.DeleteFunc(rows, func(row format.Row) bool { return row.Generation == com.Generation })
		rows = append(rows, com.Row())
		return rows[max(0, len(rows)-maxSummary):]
	}))
}

func (c *Hints) hintLast(ctx context.Context, r find.Run, com *format.Commit, b []byte) error {
	return c.objects.Swap(ctx, r.Job+"/"+format.LastKey, func(was []byte) ([]byte, error) {
		if h, err := format.ParseHint(was); err == nil && h.Run == r.Run && find.Newer(h.Position, h.Generation, com.Position,
			com.Generation) > 0 {
			return nil, nil // it never moves back
		}
		h := format.Hint{Run: r.Run, Generation: com.Generation, Position: com.Position, SHA256: format.Sum(b)}
		return h.Seal()
	})
}

// hintBest moves best.json where a commit has a better metric.
func (c *Hints) hintBest(ctx context.Context, r find.Run, com *format.Commit, b []byte) {
	value, ok := com.Metrics[c.best]
	if !ok || math.IsNaN(float64(value)) {
		return
	}
	_ = c.objects.Swap(ctx, r.Job+"/"+format.BestKey, func(was []byte) ([]byte, error) {
		h, err := format.ParseHint(was)
		if err == nil && h.Run == r.Run && h.Metric == c.best && (c.most && h.Value >= value || !c.most && h.Value <= value) {
			return nil, nil
		}
		h = &format.Hint{Run: r.Run, Generation: com.Generation, Position: com.Position, SHA256: format.Sum(b), Metric: c.best,
			Value: value}
		return h.Seal()
	})
}

// Summarize changes the rows of a run's summary.
func (c *Hints) Summarize(ctx context.Context, p format.Place, change func([]format.Row) []format.Row) error {
	return c.objects.Swap(ctx, p.Under(format.SummaryKey), func(was []byte) ([]byte, error) {
		s, err := format.ParseSummary(was, p)
		if err != nil {
			s = &format.Summary{Run: p.Run}
		}
		s.Rows = change(s.Rows)
		return s.Seal()
	})
}

// logForm orders the log's lines by name.
const logForm = "20060102T150405.000Z"

// Log writes a line of who did what.
func (c *Hints) Log(ctx context.Context, job string, l format.Log) error {
	_, err := c.LogKey(ctx, job, l)
	return err
}

// LogKey is Log, and where the line lies.
func (c *Hints) LogKey(ctx context.Context, job string, l format.Log) (key string, err error) {
	now := c.now()
	l.Who, l.Host, l.At, l.Why = c.who, c.host, now.UnixMilli(), replica.Line(l.Why, format.MaxText)
	b, err := l.Seal()
	if err != nil {
		return "", err
	}
	key = job + "/" + format.LogPrefix + now.UTC().Format(logForm) + "-" + format.Who(l.Verb) + "-" + strings.ToLower(rand.Text()[:8]) +
		".json"
	if _, err := c.objects.PutOnce(ctx, key, b); err != nil {
		return "", fmt.Errorf("log %s of job %s: %w", l.Verb, job, err)
	}
	return key, nil
}
