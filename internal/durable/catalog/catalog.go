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
// With recipients, what it writes of index and parts is encrypted, object by object, on its way into the buffers that are sent. COMMIT says
// of the files what a generation is verified, copied and deleted by without a key.
//
// A Catalog may be used by several goroutines. It keeps no truth of its own: all of it can be made anew over the same store. The package
// imports format, kept, safetensors, sealed, store and replica; it must not know any store by name.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
)

// ErrCommitted marks a second, different COMMIT of a generation.
var ErrCommitted = errors.New("already has another commit")

// ErrFenced marks what a fleet may not do any more: another one claimed the epoch, or a later one.
var ErrFenced = errors.New("another fleet owns the run")

// ErrPinned marks a generation that somebody keeps, or reads.
var ErrPinned = errors.New("pinned")

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
	// Unconditional: the store ignores the conditions of puts. Claims lie under keys of their fleets, and there are no last.json and
	// best.json.
	Unconditional bool
}

// Catalog is the tier over one root.
type Catalog struct {
	*find.Finder
	*read.Reader
	objects *objects.Writer
	who     string
	host    string
	now     func() time.Time
	best    string // the metric of best.json
	most    bool   // its largest value is the best
	keys    *sealed.Keys
	weak    bool // the store ignores conditions

	mu   sync.Mutex
	kept map[store.Info]keptLook // tars of runs' files that were read; guarded by mu
}

// New makes a catalog over a store, which stays the caller's to close.
func New(st store.Store, o Options) *Catalog {
	asks := objects.New(st, objects.Options{Now: o.Now, Pause: o.Pause, Lanes: o.Lanes, Note: o.Note, Unconditional: o.Unconditional})
	c := &Catalog{objects: asks, who: o.Who, host: o.Host, now: o.Now, best: o.Best, most: o.Largest, keys: o.Keys, weak: o.Unconditional,
		kept: make(map[store.Info]keptLook)}
	if c.who == "" {
		c.who = "user-" + fmt.Sprint(os.Getuid())
	}
	if c.host == "" {
		c.host, _ = os.Hostname() // a log without it is still one
	}
	if c.now == nil {
		c.now = time.Now
	}
	c.Finder = find.New(asks.Reader, c.keys, c.now)
	c.Reader = read.New(asks.Reader, c.Finder, c.keys)
	return c
}

// root makes sure that the root is of a format that this program knows, and marks it where nothing does. A mark that is damaged is put anew
// where runs lie below it: each document has its format's number too.
func (c *Catalog) root(ctx context.Context) error {
	b, err := format.SealRoot()
	if err != nil {
		return err
	}
	there, err := c.objects.PutOnce(ctx, format.RootKey, b)
	if there == nil {
		return err
	}
	err = format.ParseRoot(there)
	if !errors.Is(err, format.ErrCorrupt) {
		return err
	}
	err = fmt.Errorf("%s/%s: %w", c.Finder.URL(), format.RootKey, err)
	if jobs, jerr := c.Finder.Jobs(ctx); jerr != nil || len(jobs) == 0 {
		return errors.Join(fmt.Errorf("%w: it is none of replicad's: move it elsewhere, or take another place for checkpoints", err), jerr)
	}
	_, rerr := c.objects.Replace(ctx, format.RootKey, b, func(there []byte) bool {
		return !errors.Is(format.ParseRoot(there),
			format.ErrCorrupt)
	})
	c.objects.Note(err)
	return rerr
}
