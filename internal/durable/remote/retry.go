package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
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
func waitBefore(attempts int, c Class) time.Duration {
	first := firstWait
	if c == Slow || c == Busy {
		first = slowWait
	}
	d := min(first<<min(attempts-1, 10), mostWait)
	return d/2 + rand.N(d/2+1)
}

// Client makes the requests of one store.
type Client struct {
	URL      string        // of the store, for errors
	Stall    time.Duration // how long nothing of a request may move
	Patience time.Duration // how long a call is repeated
	Notice   func(Notice)
	Judge    func(ctx context.Context, tr *Trace, err error) *Failure
	Expire   func()                                    // has the next request ask for credentials anew
	Renew    func() string                             // where they came from, and what somebody must do if asking anew brings no others
	Wait     func(attempts int, c Class) time.Duration // waitBefore; tests have less time

	transport *http.Transport
	closing   context.Context // ends with the store
	end       context.CancelFunc
}

// New fills in what was left out.
func New(c Client) *Client {
	if c.Stall == 0 {
		c.Stall = defaultStall
	}
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	if c.Notice == nil {
		c.Notice = func(Notice) {}
	}
	if c.Expire == nil {
		c.Expire = func() {}
	}
	if c.Renew == nil {
		c.Renew = func() string { return "renew the credentials" }
	}
	if c.Wait == nil {
		c.Wait = waitBefore
	}
	c.transport = newTransport()
	c.closing, c.end = context.WithCancel(context.Background())
	return &c
}

const (
	defaultStall    = 30 * time.Second
	defaultPatience = 20 * time.Second
)

// Close ends the calls under way, and closes the connections.
func (c *Client) Close() {
	c.end()
	c.transport.CloseIdleConnections()
}

// Hasten divides the waits between attempts: tests have less time.
func (c *Client) Hasten(by time.Duration) {
	c.Wait = func(attempts int, class Class) time.Duration { return waitBefore(attempts, class) / by }
}

// Notice is what goes on with a store that does not do what it is asked.
type Notice struct {
	Op, Key string
	Attempt int           // from 1; 0: the request is still on its way
	Err     error         // what came of it; nil: it goes on
	Far     string        // then: how far
	Again   time.Duration // until the next attempt
}

var errClosed = errors.New("the store is closed")

// Call is one call of a caller: its requests, one after the other.
type Call struct {
	c       *Client
	ctx     context.Context // of the one call that it is
	Trace   *Trace
	until   time.Time // no attempt begins later
	attempt int
}

// Begin begins a call.
func (c *Client) Begin(ctx context.Context, op, key string) *Call {
	tr := &Trace{Op: op, Key: key}
	return &Call{c: c, ctx: traced(ctx, tr), Trace: tr, until: time.Now().Add(c.Patience)}
}

// Moves gives a call that goes on its time anew.
func (c *Call) Moves() { c.until = time.Now().Add(c.c.Patience) }

// Once makes one request.
func (c *Call) Once(do func(ctx context.Context) error) *Failure {
	if c.ctx.Err() != nil {
		return c.c.Judge(c.ctx, c.Trace, c.ctx.Err())
	}
	if c.c.closing.Err() != nil {
		return &Failure{Class: Refused, Text: errClosed.Error(), Err: errClosed}
	}
	f := c.c.Judge(c.ctx, c.Trace, do(c.ctx))
	switch {
	case f == nil:
	case f.Class == Expired:
		f.Advise(c.c.Renew())
		c.c.Expire() // the next request fetches them anew
	case f.Class == Over:
		f.Err = errors.Join(f.Err, store.ErrDoubtful) // it was on its way
	}
	return f
}

// Alive tells whether the call may go on: where nothing is asked of the server, nobody else does.
func (c *Call) Alive() *Failure {
	return c.Once(func(ctx context.Context) error { return ctx.Err() })
}

// Again waits for the next attempt after a failure; false: there is none.
func (c *Call) Again(f *Failure) bool {
	c.attempt++
	if !f.Class.Repeats() {
		return false
	}
	wait := c.c.Wait(c.attempt, f.Class)
	if time.Now().Add(wait).After(c.until) {
		return false
	}
	c.c.Notice(Notice{Op: c.Trace.Op, Key: c.Trace.Key, Attempt: c.attempt, Err: f, Again: wait})
	if c.attempt >= troubleAfter {
		store.Troubled(c.ctx, fmt.Sprintf("%s %s in %s: %v: it is tried again", c.Trace.Op, c.Trace.Key, c.c.URL, f))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	case <-c.c.closing.Done():
	}
	return true // the next request says what has ended
}

// Repeat makes requests of which each may be made twice, until one is answered for good.
func (c *Call) Repeat(do func(ctx context.Context) error) *Failure {
	for {
		f := c.Once(do)
		if f == nil || !c.Again(f) {
			return f
		}
	}
}

// Fail is what a caller gets: what was asked, of which store, how often, and what came of it.
func (c *Call) Fail(f *Failure, is ...error) error {
	if f == nil && len(is) == 0 {
		return nil
	}
	what := fmt.Sprintf("%s in %s", strings.TrimSpace(c.Trace.Op+" "+c.Trace.Key), c.c.URL)
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
	if f.Class != Busy { // which is slow, too
		plain.Class = Fine // is says it in the store's words
	}
	return fmt.Errorf("%s: %w: %w", what, errors.Join(is...), &plain)
}
