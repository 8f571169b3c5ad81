package s3

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// Waits between attempts: drawn between half and all of them, so that a thousand writers that were told to slow down do not come back
// at once.
const (
	firstWait = 100 * time.Millisecond
	mostWait  = 5 * time.Second
	slowWait  = 500 * time.Millisecond // the first one after the store asked for fewer requests
)

// troubleAfter is how many failures of a call make a trouble: one or two are an everyday thing.
const troubleAfter = 3

// waitBefore is the wait before the attempt after so many.
func waitBefore(attempts int, c class) time.Duration {
	first := firstWait
	if c == slow {
		first = slowWait
	}
	d := min(first<<min(attempts-1, 10), mostWait)
	return d/2 + rand.N(d/2+1)
}

// call is one call of a caller: its requests, one after the other.
type call struct {
	s       *Store
	ctx     context.Context // of the one call that it is
	trace   *trace
	until   time.Time // no attempt begins later
	attempt int
}

func (s *Store) begin(ctx context.Context, op, key string) *call {
	tr := &trace{op: op, key: key}
	return &call{s: s, ctx: traced(ctx, tr), trace: tr, until: time.Now().Add(s.settings.Patience)}
}

// once makes one request.
func (c *call) once(do func(ctx context.Context) error) *failure {
	if c.ctx.Err() != nil {
		return judge(c.ctx, c.trace, c.ctx.Err())
	}
	if c.s.closing.Err() != nil {
		return &failure{class: refused, text: errClosed.Error(), err: errClosed}
	}
	f := judge(c.ctx, c.trace, do(c.ctx))
	switch {
	case f == nil:
	case f.class == expired:
		c.s.creds.Expire() // the next request fetches them anew
	case f.class == over:
		f.err = errors.Join(f.err, store.ErrDoubtful) // it was on its way
	}
	return f
}

// again waits for the next attempt after a failure; false: there is none.
func (c *call) again(f *failure) bool {
	c.attempt++
	if !f.class.repeats() {
		return false
	}
	wait := c.s.wait(c.attempt, f.class)
	if time.Now().Add(wait).After(c.until) {
		return false
	}
	c.s.settings.Notice(Notice{Op: c.trace.op, Key: c.trace.key, Attempt: c.attempt, Err: f, Again: wait})
	if c.attempt >= troubleAfter {
		store.Troubled(c.ctx, fmt.Sprintf("%s %s in %s: %v: it is tried again", c.trace.op, c.trace.key, c.s.URL(), f))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	case <-c.s.closing.Done():
	}
	return true // the next request says what has ended
}

// repeat makes requests of which each may be made twice, until one is answered for good.
func (c *call) repeat(do func(ctx context.Context) error) *failure {
	for {
		f := c.once(do)
		if f == nil || !c.again(f) {
			return f
		}
	}
}

// fail is what a caller gets: what was asked, of which store, how often, and what came of it.
func (c *call) fail(f *failure, is ...error) error {
	if f == nil && len(is) == 0 {
		return nil
	}
	what := fmt.Sprintf("%s %s in %s", c.trace.op, c.trace.key, c.s.URL())
	if c.attempt > 1 {
		what += fmt.Sprintf(" (%d attempts)", c.attempt)
	}
	if f == nil {
		return fmt.Errorf("%s: %w", what, errors.Join(is...))
	}
	if len(is) == 0 {
		return fmt.Errorf("%s: %w", what, f)
	}
	plain := *f
	plain.class = fine // is says it in the store's words
	return fmt.Errorf("%s: %w: %w", what, errors.Join(is...), &plain)
}
