// Package place opens what an argument of a command names: a root in some store, perhaps a job and a run of it, and a generation. It
// knows by which keys that is read, and reads on with the next generation where one is deleted or damaged meanwhile.
package place

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
)

// Finder opens what arguments name.
type Finder struct {
	Notes io.Writer // what is to be known on the way, a line each
	*Keyring
}

// Place is what an argument names.
type Place struct {
	Cat   *catalog.Catalog
	Job   string    // empty: every one
	Run   string    // empty: every one
	At    *Pick     // nil: the newest that is whole
	Notes io.Writer // as the finder's
	Close func()

	mark error           // why a root's mark cannot be read; nil: none was met that can't
	bad  map[string]bool // what a read has found to be damaged, by Where: it is passed over
}

// Find opens what an argument names. The root is the longest beginning of it that has the format's mark; where there is none, one that has
// runs: somebody has copied those alone.
func (f Finder) Find(ctx context.Context, arg string, who string) (p *Place, err error) {
	root, at, err := Parse(arg)
	if err != nil {
		return nil, err
	}
	p = &Place{At: at, Close: func() {}, Notes: f.Notes}
	for _, unmarked := range []bool{false, true} {
		var names []string
		for url := root; ; {
			if len(names) == 0 || replica.CheckJobName(names[0]) == nil {
				ok, err := f.open(ctx, p, url, names, who, unmarked)
				if err != nil || ok {
					return p, err
				}
			}
			above, name, ok := parent(url)
			if !ok || len(names) == 2 {
				break
			}
			url, names = above, append([]string{name}, names...)
		}
	}
	err = fmt.Errorf("%s: no checkpoints of replicad's are there, nor in what lies above it", root)
	if p.mark != nil {
		err = fmt.Errorf("%w; and %w", err, p.mark)
	}
	return nil, err
}

// isRoot tells whether a root is one: by its mark, or, where that does not count, by what lies below it.
func isRoot(ctx context.Context, cat *find.Finder, names []string, unmarked bool) (bool, error) {
	if !unmarked {
		return cat.Marked(ctx)
	}
	if len(names) == 0 {
		jobs, err := cat.Jobs(ctx)
		return len(jobs) > 0, err
	}
	runs, err := cat.Runs(ctx, names[0])
	return len(runs) > 0, err
}

// open tries one beginning of an argument as the root; names are what follows it.
func (f Finder) open(ctx context.Context, p *Place, url string, names []string, who string, unmarked bool) (bool, error) {
	if dir, local := directoryOf(url); local {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return false, nil //nolint:nilerr // what lies above may be the root; where nothing is, find says so
		}
	}
	st, err := OpenStore(ctx, url, f.Notes)
	if err != nil {
		return false, err
	}
	keys, err := f.Keyring.keys()
	if err != nil {
		return false, errors.Join(err, st.Close())
	}
	cat := catalog.New(st, catalog.Options{Who: who, Keys: keys})
	ok, err := isRoot(ctx, cat.Finder, names, unmarked)
	// what lies below says whether it is one
	if !unmarked && (catalog.IsDamage(err) && !errors.Is(err, format.ErrNewer) || errors.Is(err, store.ErrRefused)) {
		p.mark, err = err, nil
	}
	if err != nil || !ok {
		return false, errors.Join(err, st.Close())
	}
	p.Cat, p.Close = cat, func() { st.Close() }
	if len(names) > 0 {
		p.Job = names[0]
	}
	if len(names) > 1 {
		p.Run = names[1]
	}
	return true, nil
}

// directoryOf is the directory that a URL or path names.
func directoryOf(url string) (string, bool) {
	if dir, ok := strings.CutPrefix(url, "file://"); ok {
		return dir, true
	}
	return url, !strings.Contains(url, "://")
}

// DefaultWho is the user's name.
func DefaultWho() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "somebody"
}

// CheckTarget refuses a target that is a job or a run of a root: the copy would be a root inside of it.
func CheckTarget(ctx context.Context, url string) error {
	at := url
	if dir, local := directoryOf(url); local {
		if abs, err := filepath.Abs(dir); err == nil {
			at = abs
		}
	}
	for range 2 {
		above, _, ok := parent(at)
		if !ok {
			return nil
		}
		st, err := OpenStore(ctx, above, io.Discard)
		if err != nil {
			return nil //nolint:nilerr // it is no root then
		}
		marked, err := catalog.New(st, catalog.Options{}).Marked(ctx)
		if cerr := st.Close(); err == nil && cerr == nil && marked {
			return usage.Wrong(fmt.Errorf("%s lies in the root %s: name that one, where the copy keeps its job and run, or a place "+
				"outside of it", url, above))
		}
		at = above
	}
	return nil
}
