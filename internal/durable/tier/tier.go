package tier

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/directory"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Settings are what a daemon's configuration says.
type Settings struct {
	Reader string // this node, in marks, the log and deletions
	// Cluster is whose manifests parts have that are opened, whichever cluster wrote them: a part is what its root says, and no root names a
	// cluster. Zero: each has its writer's.
	Cluster  replica.ClusterID
	KeepRuns int          // former runs of a name that Prune keeps, each by its rule; 0: it leaves former runs alone
	Best     replica.Best // the metric that best.json goes by
	// Keys are to whom is encrypted what is written, and what opens what was; nil: nobody, and nothing.
	Keys *sealed.Keys
	// Unconditional: the store's conditions are not tried, and not asked for where two fleets depend on them (catalog.Options).
	Unconditional bool
	Note          func(error)      // told of what costs work and not correctness; nil: nobody is
	Now           func() time.Time // the wall clock, for what is written for people and the ends of leases; nil: this host's
}

// Tier is the durable tier over one root.
type Tier struct {
	st       store.Store
	cat      *catalog.Catalog
	settings Settings

	proving sync.Mutex    // held while the store's conditions are tried
	keeping chan struct{} // taken while a tar of files is in memory: one at a time

	mu     sync.Mutex // guards what follows, but for leases and closing
	proved bool
	why    error // why they could not be, the last time
	owned  map[owned]catalog.Run
	swept  map[replica.JobID]time.Time
	reads  map[string]*read // generations that are read, by Where
	last   Found            // of which a part was opened last

	ending  []chan struct{} // of leases that nobody needs any more
	leases  sync.WaitGroup
	closing chan struct{}
	closed  bool
}

// owned is an epoch of a run that this fleet has claimed.
type owned struct {
	job   replica.JobID
	epoch replica.Epoch
}

// OpenDirectory makes a tier over a directory, which must exist and be one that this user may write to. A disk that is full, or that does not answer
// a write, can be read for all that, or later.
func OpenDirectory(ctx context.Context, dir string, s Settings) (*Tier, error) {
	st, err := directory.Open(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("durable_dir: %w", err)
	}
	t := New(st, s)
	if err := t.Prove(ctx); errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil, errors.Join(fmt.Errorf("durable_dir: %w", err), t.Close())
	}
	return t, nil
}

// DirectoryLater is OpenDirectory for a directory that can't be used now: each call to it tries that anew.
func DirectoryLater(dir string, s Settings) (*Tier, error) {
	st, err := directory.Later(dir)
	if err != nil {
		return nil, err
	}
	return New(st, s), nil
}

// New makes a tier over a store, which Close closes.
func New(st store.Store, s Settings) *Tier {
	return &Tier{st: st, cat: catalog.New(st, catalog.Options{Who: s.Reader, Note: s.Note, Best: s.Best.Metric, Largest: s.Best.Largest(), Keys: s.Keys, Unconditional: s.Unconditional, Now: s.Now}), settings: s,
		owned: map[owned]catalog.Run{}, swept: map[replica.JobID]time.Time{}, reads: map[string]*read{}, keeping: make(chan struct{}, 1), closing: make(chan struct{})}
}

// URL names the root, for people.
func (t *Tier) URL() string { return t.st.URL() }

// ErrUnconditional: the store ignores the conditions that keep two fleets apart. Nothing is written to it.
var ErrUnconditional = store.ErrUnconditional

// Prove tries whether the store does what its conditions say, unless it has been seen to. Nothing is written to one that has not.
func (t *Tier) Prove(ctx context.Context) error { return t.prove(ctx, store.ProbeTime) }

// provePatience is how long the probe before a write may take: whoever makes it waits for the write anyway.
const provePatience = time.Minute

// proveToWrite is Prove for a write.
func (t *Tier) proveToWrite(ctx context.Context) error {
	return t.prove(ctx, provePatience)
}

func (t *Tier) prove(ctx context.Context, most time.Duration) error {
	t.proving.Lock()
	defer t.proving.Unlock()
	t.mu.Lock()
	proved := t.proved
	t.mu.Unlock()
	if proved {
		return nil
	}
	probe := store.ProbeWithin
	if t.settings.Unconditional {
		probe = answers
	}
	err := probe(ctx, t.st, most)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.proved, t.why = err == nil, err
	return err
}

// answers tries whether a store is there at all.
func answers(ctx context.Context, s store.Store, most time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("%w: no answer for %v", store.ErrDoubtful, most))
	defer cancel()
	if _, err := s.Stat(ctx, format.RootKey); !errors.Is(err, store.ErrAbsent) {
		return err
	}
	return nil
}

// Proved tells whether the store was seen to do what its conditions say.
func (t *Tier) Proved() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.proved
}

// Silent says why the store can't be used now: since when it has not answered, or why its conditions could not be tried. Empty: it can, as far as
// is known.
func (t *Tier) Silent() string {
	t.mu.Lock()
	why := t.why
	t.mu.Unlock()
	if err := t.Hangs(); why != nil && err != nil {
		why = err // it says more than how long the probe took
	}
	if why != nil {
		return why.Error()
	}
	if s, ok := t.st.(interface{ Silent() string }); ok {
		return s.Silent()
	}
	return ""
}

// Hangs says which call to the store was given up and has not returned; nil: none.
func (t *Tier) Hangs() error {
	if s, ok := t.st.(interface{ Hangs() error }); ok {
		return s.Hangs()
	}
	return nil
}

// Close closes the store. Calls under way end.
func (t *Tier) Close() error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.closing)
	}
	t.mu.Unlock()
	t.leases.Wait()
	return t.st.Close()
}

// Watch hears how calls go on; Watching has it do so.
type Watch = store.Watch

// Watching has the store tell w of the calls that are made with the context.
func Watching(ctx context.Context, w Watch) context.Context { return store.Watching(ctx, w) }

func (t *Tier) note(err error) {
	if err != nil && t.settings.Note != nil {
		t.settings.Note(err)
	}
}
