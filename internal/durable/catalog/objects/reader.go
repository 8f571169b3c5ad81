// Package objects makes requests to a store, and makes them again until their answer is clear. After every answer that leaves open what was
// done it reads back: its own bytes there are success. It knows keys and bytes, and nothing of runs.
package objects

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
)

// Options say how requests are made. The zero value is how a program makes them that only reads.
type Options struct {
	Now   func() time.Time                           // when a request began, to the end of patience; nil: this host's clock
	Pause func(context.Context, time.Duration) error // between tries; nil waits
	Lanes int                                        // requests at once for one thing: parts of an upload, blocks, files [4]
	Block int64                                      // how much of an object is read at once, in bytes [8 MiB]
	Note  func(error)                                // gets the errors of hints that could not be written; nil: nobody does
	// Unconditional: the store ignores the conditions of puts.
	Unconditional bool
}

// Reader makes the requests that change nothing.
type Reader struct {
	st    store.Store
	now   func() time.Time
	pause func(context.Context, time.Duration) error
	Lanes int
	Block int64 // how much of an object is read at once, in bytes
}

// New makes what reads and writes a store. Its Reader is for those that only read.
func New(st store.Store, o Options) *Writer {
	r := &Reader{st: st, now: o.Now, pause: o.Pause, Lanes: o.Lanes, Block: o.Block}
	if r.now == nil {
		r.now = time.Now
	}
	if r.pause == nil {
		r.pause = pause
	}
	if r.Lanes <= 0 {
		r.Lanes = 4
	}
	if r.Block <= 0 {
		r.Block = blockBytes
	}
	return &Writer{Reader: r, note: o.Note, weak: o.Unconditional}
}

// URL names the root, for people.
func (c *Reader) URL() string { return c.st.URL() }

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Tries is how often a request is made whose answer leaves open what was done. The store itself tries more patiently; these are for answers
// that only somebody who knows what he asked for can tell from success.
const (
	Tries      = 4
	firstPause = 50 * time.Millisecond
	patience   = 10 * time.Second // a request that took longer was repeated by the store, as long as docs/stores.md says
)

// unclear reports whether a request may be made again.
func unclear(err error) bool {
	return errors.Is(err, store.ErrDoubtful) || errors.Is(err, store.ErrSlowDown)
}

// Again makes a request until its answer is clear.
func (c *Reader) Again(ctx context.Context, ask func() error) (err error) {
	began := c.now()
	for i := range Tries {
		if err = ask(); !unclear(err) || c.now().Sub(began) >= patience {
			return err
		}
		if i+1 < Tries {
			if perr := c.pause(ctx, firstPause<<i); perr != nil {
				return errors.Join(err, perr)
			}
		}
	}
	return err
}

// Stat asks what there is of an object without its bytes.
func (c *Reader) Stat(ctx context.Context, key string) (info store.Info, err error) {
	err = c.Again(ctx, func() (err error) {
		info, err = c.st.Stat(ctx, key)
		return err
	})
	return info, err
}

// Range reads a range of an object, with one request. After an error the store may still write to b.
func (c *Reader) Range(ctx context.Context, key string, off int64, b []byte) error {
	return c.st.ReadRange(ctx, key, off, b)
}

// Get reads a small object.
func (c *Reader) Get(ctx context.Context, key string) (b []byte, v store.Version, err error) {
	err = c.Again(ctx, func() (err error) {
		b, v, err = c.st.Get(ctx, key, format.MaxDocument)
		return err
	})
	return b, v, err
}

// ErrStop ends a list early.
var ErrStop = errors.New("seen enough")

// List calls each for the objects below a prefix, behind a key.
func (c *Reader) List(ctx context.Context, prefix, after string, each func(store.Info) error) error {
	err := c.Again(ctx, func() error {
		return c.st.List(ctx, prefix, after, func(info store.Info) error {
			after = info.Key // a list that breaks off goes on behind it
			return each(info)
		})
	})
	if errors.Is(err, ErrStop) {
		return nil
	}
	return err
}

// Each calls do for 0 to n-1, some at once, and returns the first error.
func (c *Reader) Each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	return c.eachOf(ctx, c.Lanes, n, do)
}

// lookLanes is how many small requests are made in place of one that holds a block in memory. A generation of thousands of ranks has as
// many files to look at.
const lookLanes = 4

// EachSmall is each for requests that hold next to nothing in memory.
func (c *Reader) EachSmall(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	return c.eachOf(ctx, lookLanes*c.Lanes, n, do)
}

func (c *Reader) eachOf(ctx context.Context, lanes, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	turn := make(chan struct{}, lanes)
	for i := range n {
		turn <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-turn }()
			if err := do(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// Modified is when an object was written last, by the store's clock.
func (c *Reader) Modified(ctx context.Context, key string) (time.Time, error) {
	info, err := c.Stat(ctx, key)
	return info.Modified, err
}

// Forget has the next read of an object come from the disk. It is advice.
func (c *Reader) Forget(ctx context.Context, key string) {
	if f, ok := c.st.(store.Forgetter); ok {
		_ = f.Forget(ctx, key)
	}
}
