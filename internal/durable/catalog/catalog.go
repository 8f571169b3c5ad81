// Package catalog is the durable tier over any store: it writes generations, finds, reads, verifies, keeps, copies and deletes them.
//
// A generation exists from the moment that its COMMIT does. Parts lie under names that no other attempt has; then comes the index, then
// COMMIT, put if absent, and last.json, a hint. A list is the truth; hints save requests where they agree with it. Nothing is believed for
// its time. After every answer that leaves open what was done, the catalog reads back: its own bytes there are success.
//
// One fleet owns a run, by a claim of an epoch that is put if absent. A fleet that finds that another has taken the run commits no more.
// In a store without conditions each fleet puts claims under keys of its own, and lists those of others afterwards.
//
// A COMMIT changes in one case: Strip puts that of a generation without optimizer state in the former's place, unchanged since it was read.
//
// Deleting goes by trash entry, COMMIT, files, entry; whoever finds an entry may finish it. What no COMMIT names is swept when it is older
// than a grace, by the store's own times.
//
// With recipients, what it writes of index and parts is encrypted, object by object, on its way into the buffers that are sent. COMMIT says of the files
// what a generation is verified, copied and deleted by without a key.
//
// A Catalog may be used by several goroutines. It keeps no truth of its own: all of it can be made anew over the same store. The package
// imports format, kept, safetensors, sealed, store and replica; it must not know any store by name.
package catalog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

var (
	// ErrCommitted marks a second, different COMMIT of a generation.
	ErrCommitted = errors.New("already has another commit")
	// ErrFenced marks what a fleet may not do any more: another one claimed the epoch, or a later one.
	ErrFenced = errors.New("another fleet owns the run")
	// ErrPinned marks a generation that somebody keeps, or reads.
	ErrPinned = errors.New("pinned")
	// ErrNone: there is no such job, run or generation.
	ErrNone = errors.New("not there")
)

// Options of a catalog. The zero value is for programs that only read.
type Options struct {
	Who   string                                     // in pins, reads and the log; the user's name where empty
	Host  string                                     // in the log; this host where empty
	Note  func(error)                                // told of hints that could not be written; nil: nobody is
	Now   func() time.Time                           // for what is written for people, and the ends of pins
	Pause func(context.Context, time.Duration) error // between tries; nil waits
	Lanes int                                        // requests at once for one thing: parts of an upload, blocks, files [4]
	// Best is the metric that best.json goes by, empty for none; Largest: its largest value is the best.
	Best    string
	Largest bool
	// Keys are to whom generations are encrypted that are written, and what opens those that are; nil: nothing is, and nothing does.
	Keys *sealed.Keys
	// Unconditional: the store ignores the conditions of puts. Claims lie under keys of their fleets, and there are no last.json and best.json.
	Unconditional bool
}

// Catalog is the tier over one root.
type Catalog struct {
	st    store.Store
	note  func(error)
	who   string
	host  string
	now   func() time.Time
	pause func(context.Context, time.Duration) error
	lanes int
	best  string // the metric of best.json
	most  bool   // its largest value is the best
	keys  *sealed.Keys
	weak  bool  // the store ignores conditions
	block int64 // how much of an object is read at once, in bytes

	mu sync.Mutex
	// Guarded by mu, by the key of the first twin: frozen files that were seen whole since the start or the last failed read.
	frozen map[string]format.Written
	backed map[string]bool              // frozen files, each twin by its key, that were read back whole since the start or the last failed read
	runs   map[replica.JobID]Run        // where they lie; guarded by mu
	said   map[store.Info]*format.Claim // that were read; guarded by mu
	kept   map[store.Info]keptLook      // tars of runs' files that were read; guarded by mu
}

// New makes a catalog over a store, which stays the caller's to close.
func New(st store.Store, o Options) *Catalog {
	c := &Catalog{st: st, note: o.Note, who: o.Who, host: o.Host, now: o.Now, pause: o.Pause, lanes: o.Lanes, best: o.Best, most: o.Largest, keys: o.Keys, weak: o.Unconditional, block: blockBytes, frozen: make(map[string]format.Written), backed: make(map[string]bool), runs: make(map[replica.JobID]Run), said: make(map[store.Info]*format.Claim), kept: make(map[store.Info]keptLook)}
	if c.who == "" {
		c.who = "user-" + fmt.Sprint(os.Getuid())
	}
	if c.host == "" {
		c.host, _ = os.Hostname() // a log without it is still one
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.pause == nil {
		c.pause = pause
	}
	if c.lanes <= 0 {
		c.lanes = 4
	}
	return c
}

// URL names the root, for people.
func (c *Catalog) URL() string { return c.st.URL() }

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

// tries is how often a request is made whose answer leaves open what was done. The store itself tries more patiently; these are for answers
// that only somebody who knows what he asked for can tell from success.
const (
	tries      = 4
	firstPause = 50 * time.Millisecond
	patience   = 10 * time.Second // a request that took longer was repeated by the store, as long as docs/stores.md says
)

// unclear tells whether a request may be made again.
func unclear(err error) bool {
	return errors.Is(err, store.ErrDoubtful) || errors.Is(err, store.ErrSlowDown)
}

// again makes a request until its answer is clear.
func (c *Catalog) again(ctx context.Context, ask func() error) (err error) {
	began := c.now()
	for i := range tries {
		if err = ask(); !unclear(err) || c.now().Sub(began) >= patience {
			return err
		}
		if i+1 < tries {
			if perr := c.pause(ctx, firstPause<<i); perr != nil {
				return errors.Join(err, perr)
			}
		}
	}
	return err
}

// get reads a small object.
func (c *Catalog) get(ctx context.Context, key string) (b []byte, v store.Version, err error) {
	err = c.again(ctx, func() (err error) {
		b, v, err = c.st.Get(ctx, key, format.MaxDocument)
		return err
	})
	return b, v, err
}

// putOnce puts an object where none is. there is what lies in its place, if that is something else.
func (c *Catalog) putOnce(ctx context.Context, key string, b []byte) (there []byte, err error) {
	err = c.again(ctx, func() error {
		err := c.putNew(ctx, key, b)
		if err == nil || !unclear(err) && !errors.Is(err, store.ErrExists) {
			return err
		}
		got, _, gerr := c.st.Get(ctx, key, format.MaxDocument)
		switch {
		case gerr == nil && bytes.Equal(got, b):
			return nil // an answer was lost, or somebody put the very same
		case gerr == nil:
			there = got
			return fmt.Errorf("%s: %w", key, store.ErrExists)
		case errors.Is(gerr, store.ErrAbsent) && errors.Is(err, store.ErrExists):
			return fmt.Errorf("%w: %s was there and is gone", store.ErrDoubtful, key)
		case unclear(gerr):
			return gerr
		}
		return err
	})
	return there, err
}

// putNew is the store's, and looks first where that ignores the condition: what somebody put long ago is not overwritten. Of two that put at once the
// last one stays.
func (c *Catalog) putNew(ctx context.Context, key string, b []byte) error {
	if c.weak {
		if _, err := c.st.Stat(ctx, key); !errors.Is(err, store.ErrAbsent) {
			return cmp.Or(err, fmt.Errorf("%s: %w", key, store.ErrExists))
		}
	}
	_, err := c.st.PutNew(ctx, key, b)
	return err
}

// swap changes a hint: change gets what is there, nil for nothing or for what cannot be read, and returns nil to leave it.
func (c *Catalog) swap(ctx context.Context, key string, change func(was []byte) ([]byte, error)) error {
	for range tries {
		was, v, err := c.get(ctx, key)
		if err != nil && !errors.Is(err, store.ErrAbsent) {
			return err
		}
		absent := err != nil
		b, err := change(was)
		if err != nil || b == nil {
			return err
		}
		if absent {
			_, err = c.st.PutNew(ctx, key, b)
		} else {
			_, err = c.st.PutUnchanged(ctx, key, b, v)
		}
		if err == nil || !unclear(err) && !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrChanged) {
			return err
		}
	}
	return fmt.Errorf("%s: %w: others change it", key, store.ErrChanged)
}

// remove deletes an object. What is gone is no error.
func (c *Catalog) remove(ctx context.Context, key string) error {
	return c.again(ctx, func() error { return c.st.Delete(ctx, key) })
}

// errStop ends a list early.
var errStop = errors.New("seen enough")

func (c *Catalog) list(ctx context.Context, prefix, after string, each func(store.Info) error) error {
	err := c.again(ctx, func() error {
		return c.st.List(ctx, prefix, after, func(info store.Info) error {
			after = info.Key // a list that breaks off goes on behind it
			return each(info)
		})
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// each calls do for 0 to n-1, some at once, and returns the first error.
func (c *Catalog) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	return c.eachOf(ctx, c.lanes, n, do)
}

// lookLanes is how many requests that hold next to nothing in memory are made in place of one that holds a block: a generation of thousands of ranks has
// as many files to look at.
const lookLanes = 4

func (c *Catalog) eachOf(ctx context.Context, lanes, n int, do func(ctx context.Context, i int) error) error {
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

// root makes sure that the root is of a format that this program knows, and marks it where nothing does. A mark that is damaged is put anew where runs lie
// below it: each document has its format's number too.
func (c *Catalog) root(ctx context.Context) error {
	b, err := format.SealRoot()
	if err != nil {
		return err
	}
	there, err := c.putOnce(ctx, format.RootKey, b)
	if there == nil {
		return err
	}
	err = format.ParseRoot(there)
	if !errors.Is(err, format.ErrCorrupt) {
		return err
	}
	err = fmt.Errorf("%s/%s: %w", c.URL(), format.RootKey, err)
	if jobs, jerr := c.Jobs(ctx); jerr != nil || len(jobs) == 0 {
		return errors.Join(fmt.Errorf("%w: it is none of replicad's: move it elsewhere, or take another place for checkpoints", err), jerr)
	}
	_, rerr := c.replace(ctx, format.RootKey, b, func(there []byte) bool { return !errors.Is(format.ParseRoot(there), format.ErrCorrupt) })
	c.told(err)
	return rerr
}

// Marked tells whether the root has this format's mark.
func (c *Catalog) Marked(ctx context.Context) (bool, error) {
	b, _, err := c.get(ctx, format.RootKey)
	if errors.Is(err, store.ErrAbsent) {
		return false, nil
	}
	if err == nil {
		err = format.ParseRoot(b)
	}
	if err != nil {
		return false, fmt.Errorf("%s/%s: %w", c.URL(), format.RootKey, err)
	}
	return true, nil
}
