package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// ErrSilent marks what was given up because the file system below the directory did not answer.
var ErrSilent = errors.New("the file system does not answer")

const (
	lookPatience = 5 * time.Second // for a call that looks: at a name, a list, a small object
	workPatience = time.Minute     // for one that changes something, or moves up to step bytes
	stopPatience = time.Second     // for any, once its caller's context has ended
	silentAgain  = 5 * time.Second // between two calls that are tried while none is answered
	maxAbandoned = 64              // calls that were given up and have not returned; with so many, none is tried
)

// gate passes calls to the file system, each in a goroutine of its own, so that a mount whose server is gone holds nobody up. The
// kernel takes such a call back for no deadline and for no signal but SIGKILL: its goroutine, and the thread that it is in, are
// abandoned knowingly, and end when the call returns or the process ends. They touch nothing but the buffer that they were given.
// While no call is answered the next ones are refused at once, but for one now and then that finds out.
type gate struct {
	dir     string
	closing chan struct{} // closed when the store is

	mu        sync.Mutex // guards the rest
	silent    bool       // the last call that ended was given up for the file system's fault
	stuck     string     // the first call that was, since one was answered, and when
	since     time.Time
	again     time.Time // when the next call is tried while silent
	abandoned int
	left      string // the first call that was, since all had returned, whoever gave it up, and when
	leftAt    time.Time
}

// passage is one call on its way. The gate's mu guards it until done is closed.
type passage[T any] struct {
	done     chan struct{}
	returned bool
	late     bool // nobody waits for it any more
	value    T
	err      error
}

// ended is what an operation returns once its context has ended.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

// through makes one call. What it returns after it was given up is closed, if it can be.
func through[T any](ctx context.Context, g *gate, patience time.Duration, what string, call func() (T, error)) (none T, err error) {
	if ctx.Err() != nil {
		return none, ended(ctx)
	}
	if g.closed() {
		return none, errClosed
	}
	if err := g.admit(); err != nil {
		return none, err
	}
	p := &passage[T]{done: make(chan struct{})}
	go func() {
		value, err := call()
		if late := arrive(g, p, value, err); late && err == nil {
			if c, ok := any(value).(io.Closer); ok {
				_ = c.Close() // its opener has gone on without it
			}
		}
	}()
	stop, closing := ctx.Done(), g.closing
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-p.done:
			return p.value, p.err
		case <-stop:
			stop, closing = nil, nil
			timer.Reset(stopPatience)
		case <-closing:
			stop, closing = nil, nil
			timer.Reset(stopPatience)
		case <-timer.C:
			if err := giveUp(ctx, g, p, what); err != nil {
				return none, err
			}
			return p.value, p.err // it was just in time
		}
	}
}

// arrive takes note of a call that returned, and tells whether it came too late.
func arrive[T any](g *gate, p *passage[T], value T, err error) (late bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent = false
	if p.late {
		g.abandoned--
		return true
	}
	p.returned, p.value, p.err = true, value, err
	close(p.done)
	return false
}

// giveUp abandons a call that has not returned. One whose caller wants it no more says nothing about the file system.
func giveUp[T any](ctx context.Context, g *gate, p *passage[T], what string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.returned {
		return nil
	}
	p.late = true
	if g.abandoned++; g.abandoned == 1 {
		g.left, g.leftAt = what, time.Now()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("directory %s: %w: %s has not returned: %w", g.dir, errAbandoned, what, ended(ctx))
	}
	if g.closed() {
		return fmt.Errorf("directory %s: %w: %s has not returned: %w", g.dir, errAbandoned, what, errClosed)
	}
	now := time.Now()
	if !g.silent {
		g.silent, g.stuck, g.since = true, what, now
	}
	g.again = now.Add(silentAgain)
	return fmt.Errorf("directory %s: %w: %w: %s has not returned: %s", g.dir, ErrSilent, errAbandoned, what, remedy)
}

// errAbandoned marks a call that may still be carried out, and still read or write the buffer that it was given.
var errAbandoned = errors.New("given up")

var errClosed = errors.New("the store is closed")

func (g *gate) closed() bool {
	select {
	case <-g.closing:
		return true
	default:
		return false
	}
}

const remedy = "see to its mount (durable_dir of a daemon) and the server behind it; what waits for it goes on by itself once it answers"

// admit refuses a call while the file system is silent.
func (g *gate) admit() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.silent && g.abandoned < maxAbandoned && !now.Before(g.again) {
		g.again = now.Add(silentAgain)
		return nil
	}
	return g.complaint(now)
}

// hangsLocked tells of the calls that were given up and have not returned.
func (g *gate) hangsLocked(now time.Time) error {
	if g.abandoned == 0 {
		return nil
	}
	return fmt.Errorf("directory %s: %w: %s was given up %v ago and has not returned: %s", g.dir, ErrSilent, g.left, now.Sub(g.leftAt).Round(time.Second), remedy)
}

// complaint says why no call is made; nil: nothing speaks against one.
func (g *gate) complaint(now time.Time) error {
	switch {
	case g.abandoned >= maxAbandoned: // though others may be answered, from what the kernel remembers
		return fmt.Errorf("directory %s: %w: %d calls have not returned, one of them %s: see to its mount and the server behind it, and start this daemon again if they never do", g.dir, ErrSilent, g.abandoned, g.stuck)
	case g.silent:
		return fmt.Errorf("directory %s: %w: %s was given up %v ago: %s", g.dir, ErrSilent, g.stuck, now.Sub(g.since).Round(time.Second), remedy)
	}
	return nil
}
