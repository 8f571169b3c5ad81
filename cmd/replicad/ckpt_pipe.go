package main

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/spf13/cobra"
)

// pipe serves generations to another program. It is hidden: nobody types requests. Those that read are for any program (docs/c.md), the others are between
// this program and the package of its release.
func (c ckpt) pipe() *cobra.Command {
	var f common
	var recipients []string
	cmd := f.add(&cobra.Command{
		Use: "pipe WHERE", Short: "Serve generations to the Python package over standard input and output", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return pipe.Serve(cmd.Context(), c.std.in, c.std.out, pipe.Stores{
				Read: func(ctx context.Context, job, at string, read func(pipe.Generation) error) error {
					return c.piped(ctx, args[0], job, at, f.name(), read)
				},
				Write: func(ctx context.Context) (*catalog.Catalog, uint32, func(), error) {
					keys, err := c.Keyring.Sealing(recipients, true)
					if err != nil {
						return nil, 0, nil, err
					}
					st, err := place.OpenStore(ctx, args[0], c.std.err)
					if err != nil {
						return nil, 0, nil, err
					}
					note := func(err error) { console.Printf(c.std.err, "replicad: %v\n", err) }
					return catalog.New(st, catalog.Options{Who: f.name(), Keys: keys, Note: note}), uint32(os.Getuid()), func() { st.Close() }, nil
				},
			})
		},
	}, true)
	cmd.Flags().StringArrayVar(&recipients, "recipient", nil,
		"encrypt what is written to this recipient of age (default: "+place.RecipientsVariable+")")
	return cmd
}

// piped reads a generation: job and at add to what where says. Who may only read the store reads without a lease, and is told.
func (c ckpt) piped(ctx context.Context, where, job, at, who string, read func(pipe.Generation) error) error {
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
			console.Printf(c.std.err, "replicad: it is read without a pin, so nobody who deletes it waits: %v\n", err)
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
