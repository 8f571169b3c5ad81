package ckpt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/pipe"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
)

// Serve has a generation read as a request to the pipe names it: job and at add to where. Of a store that takes no lease it is read without
// one,
// which is a note.
func Serve(ctx context.Context, c place.Finder, where, job, at, who string, read func(pipe.Generation) error) error {
	root, tail, named := strings.Cut(where, "@")
	if job != "" {
		root = strings.TrimRight(root, "/") + "/" + job
	}
	switch {
	case named && at != "":
		return usage.Wrong(fmt.Errorf("%s names a generation, and so does %s: give one of them", where, at))
	case named:
		root += "@" + tail
	case at != "":
		root += "@" + at
	}
	w, err := c.Find(ctx, root, who)
	if err != nil {
		return err
	}
	defer w.Close()
	if job != "" && w.Job != job {
		return fmt.Errorf("%s: there is no job %s: %w", where, job, catalog.ErrNone)
	}
	refused := func(err error) {
		if errors.Is(err, store.ErrRefused) {
			console.Printf(c.Notes, "replicad: it is read without a pin, so nobody who deletes it waits: %v\n", err)
		}
	}
	return w.Leased(ctx, "replicad.dcp", refused, func(f catalog.Found) error {
		if err := f.Readable(); err != nil {
			return err
		}
		var mu sync.Mutex // requests and answers each meet what is damaged
		met := func(err error) error {
			mu.Lock()
			defer mu.Unlock()
			if w.Remembers(ctx, f, err) {
				err = fmt.Errorf("%w: it counts for nothing from now on, and the newest that is whole is an older one", err)
			}
			return err
		}
		return read(pipe.Generation{Found: f, Root: w.Cat.URL(), Met: met,
			Shard: func(ctx context.Context, p replica.Part) (catalog.ShardReader, error) {
				return w.Cat.OpenShard(ctx, f, p)
			}})
	})
}
