package ckpt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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

// Serve answers the requests of another program: it reads generations of a place, and writes some there, encrypted to the recipients.
func Serve(ctx context.Context, c place.Finder, where, who string, recipients []string, in io.Reader, out io.Writer) error {
	return pipe.Serve(ctx, in, out, pipe.Stores{
		Read: func(ctx context.Context, job, at string, read func(pipe.Generation) error) error {
			return served(ctx, c, where, job, at, who, read)
		},
		Write: func(ctx context.Context) (*catalog.Catalog, uint32, func(), error) {
			keys, err := c.Sealing(recipients, true)
			if err != nil {
				return nil, 0, nil, err
			}
			st, err := place.OpenStore(ctx, where, c.Notes)
			if err != nil {
				return nil, 0, nil, err
			}
			note := func(err error) { console.Printf(c.Notes, "replicad: %v\n", err) }
			return catalog.New(st, catalog.Options{Who: who, Keys: keys, Note: note}), uint32(os.Getuid()), func() { st.Close() }, nil
		},
	})
}

// served has a generation read as a request to the pipe names it: job and at add to where. Of a store that takes no lease it is read
// without
// one,
// which is a note.
func served(ctx context.Context, c place.Finder, where, job, at, who string, read func(pipe.Generation) error) error {
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
