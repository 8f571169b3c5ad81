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
// A Catalog may be used by several goroutines. It keeps no truth of its own: all of it can be made anew over the same store. The packages
// below it are its parts, and know no store by name.
package catalog

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/hints"
	"github.com/replicad/replicad/internal/durable/catalog/keep"
	"github.com/replicad/replicad/internal/durable/catalog/move"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
)

// Options of a catalog. The zero value is for programs that only read.
type Options struct {
	Who   string                                     // in pins, reads and the log; the user's name where empty
	Host  string                                     // in the log; this host where empty
	Note  func(error)                                // told of hints that could not be written; nil: nobody is
	Now   func() time.Time                           // for what is written for people, and the ends of pins
	Pause func(context.Context, time.Duration) error // between tries; nil waits
	Lanes int                                        // requests at once for one thing: parts of an upload, blocks, files [4]
	Block int64                                      // how much of an object is read at once, in bytes [8 MiB]
	// Best is the metric that best.json goes by, empty for none; Largest: its largest value is the best.
	Best    string
	Largest bool
	// Keys are to whom generations are encrypted that are written, and what opens those that are; nil: nothing is, and nothing does.
	Keys *sealed.Keys
	// Unconditional: the store ignores the conditions of puts. Claims lie under keys of their fleets, and there are no last.json and
	// best.json.
	Unconditional bool
}

// Catalog is the tier over one root: what finds, reads, writes, keeps and moves generations there.
type Catalog struct {
	*find.Finder
	*read.Reader
	*hints.Hints
	*write.Writer
	*keep.Keeper
	*move.Mover
}

// New makes a catalog over a store, which stays the caller's to close.
func New(st store.Store, o Options) *Catalog {
	if o.Who == "" {
		o.Who = "user-" + fmt.Sprint(os.Getuid())
	}
	if o.Host == "" {
		o.Host, _ = os.Hostname() // a log without it is still one
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	asks := objects.New(st, objects.Options{
		Now: o.Now, Pause: o.Pause, Lanes: o.Lanes, Block: o.Block, Note: o.Note, Unconditional: o.Unconditional,
	})
	f := find.New(asks.Reader, o.Keys, o.Now)
	r := read.New(asks.Reader, f, o.Keys)
	h := hints.New(asks, hints.Options{Who: o.Who, Host: o.Host, Now: o.Now, Best: o.Best, Largest: o.Largest,
		Unconditional: o.Unconditional})
	w := write.New(asks, f, r, h, write.Options{Who: o.Who, Keys: o.Keys, Now: o.Now, Unconditional: o.Unconditional})
	k := keep.New(asks, f, r, h, o.Who, o.Now)
	return &Catalog{Finder: f, Reader: r, Hints: h, Writer: w, Keeper: k, Mover: move.New(asks, f, r, h, w, k, o.Keys)}
}

// Copy takes a generation to another catalog, under the same names: files, index, COMMIT last. One that is there already is no error;
// mended: files of it were damaged or missing, and were written anew. The source keeps the generation meanwhile, where it can be written
// to.
func (c *Catalog) Copy(ctx context.Context, f Found, to *Catalog) (mended bool, err error) {
	return c.Mover.Copy(ctx, f, to.Mover)
}

// CopyAnew is Copy of what lies in a generation: it is read, each byte checked, and written as the target writes, which may be without
// encryption, or to others. Where the very parts are there already they are read, and written anew if they are damaged.
func (c *Catalog) CopyAnew(ctx context.Context, f Found, to *Catalog) error {
	return c.Mover.CopyAnew(ctx, f, to.Mover)
}
