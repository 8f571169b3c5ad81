package tier

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/directory"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Settings are what a daemon's configuration says.
type Settings struct {
	Reader   string      // this node, in marks, the log and deletions
	KeepRuns int         // former runs of a name that Prune keeps, each by its rule; 0: it leaves former runs alone
	Note     func(error) // told of what costs work and not correctness; nil: nobody is
}

// Tier is the durable tier over one root.
type Tier struct {
	st       store.Store
	cat      *catalog.Catalog
	old      *catalog.Old // nil: the root is no directory
	settings Settings

	mu    sync.Mutex // guards the rest
	owned map[owned]catalog.Run
	swept map[replica.JobID]time.Time
	reads map[string]int // generations with open parts, by Where
}

// owned is an epoch of a run that this fleet has claimed.
type owned struct {
	job   replica.JobID
	epoch replica.Epoch
}

// OpenDirectory makes a tier over a directory, which must exist and be writable. Once ctx has ended, nobody waits for its file system for long.
func OpenDirectory(ctx context.Context, dir string, s Settings) (*Tier, error) {
	old, err := catalog.OpenOld(ctx, dir)
	if err != nil {
		return nil, err
	}
	st, err := directory.Open(ctx, dir)
	if err != nil {
		return nil, errors.Join(err, old.Close())
	}
	return New(st, old, s), nil
}

// New makes a tier over a store. old is its directory as the former layout sees it; nil: it has none. Close closes both.
func New(st store.Store, old *catalog.Old, s Settings) *Tier {
	return &Tier{st: st, cat: catalog.New(st, catalog.Options{Who: s.Reader}), old: old, settings: s,
		owned: map[owned]catalog.Run{}, swept: map[replica.JobID]time.Time{}, reads: map[string]int{}}
}

// URL names the root, for people.
func (t *Tier) URL() string { return t.st.URL() }

// Silent says since when the store has not answered; empty: it answers, as far as is known.
func (t *Tier) Silent() string {
	if s, ok := t.st.(interface{ Silent() string }); ok {
		return s.Silent()
	}
	return ""
}

// Close closes the store. Calls under way end.
func (t *Tier) Close() error {
	err := t.st.Close()
	if t.old != nil {
		err = errors.Join(err, t.old.Close())
	}
	return err
}

func (t *Tier) note(err error) {
	if err != nil && t.settings.Note != nil {
		t.settings.Note(err)
	}
}

// hold counts who reads a generation: Prune keeps it meanwhile.
func (t *Tier) hold(where string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reads[where] += n; t.reads[where] == 0 {
		delete(t.reads, where)
	}
}

func (t *Tier) isRead(where string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reads[where] > 0
}
