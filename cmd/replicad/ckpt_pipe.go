package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/pipe"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

// pipe serves generations to another program. It is hidden: nobody types requests. Those that read are for any program (docs/c.md), the others are between
// this program and the package of its release.
func (c ckpt) pipe() *cobra.Command {
	var f common
	cmd := f.add(&cobra.Command{
		Use: "pipe WHERE", Short: "Serve generations to the Python package over standard input and output", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return pipe.Serve(cmd.Context(), c.std.in, c.std.out, pipe.Stores{
				Open: func(ctx context.Context, job, at string) (pipe.Generation, error) {
					return c.opened(ctx, args[0], job, at, f.name())
				},
				Write: func(ctx context.Context) (*catalog.Catalog, uint32, func(), error) {
					st, err := openStore(ctx, args[0], c.std.err)
					if err != nil {
						return nil, 0, nil, err
					}
					note := func(err error) { printf(c.std.err, "replicad: %v\n", err) }
					return catalog.New(st, catalog.Options{Who: f.name(), Note: note}), uint32(os.Getuid()), func() { st.Close() }, nil
				},
			})
		},
	}, true)
	return cmd
}

// opened finds a generation: job and at add to what where says.
func (c ckpt) opened(ctx context.Context, where, job, at, who string) (g pipe.Generation, err error) {
	root, tail, named := strings.Cut(where, "@")
	if job != "" {
		root = strings.TrimRight(root, "/") + "/" + job
	}
	switch {
	case named && at != "":
		return g, pipe.Usage(fmt.Errorf("%s names a generation, and so does %s: give one of them", where, at))
	case named:
		root += "@" + tail
	case at != "":
		root += "@" + at
	}
	w, err := c.find(ctx, root, who)
	if err == nil && job != "" && w.job != job {
		w.close()
		err = fmt.Errorf("%s: there is no job %s: %w", where, job, catalog.ErrNone)
	}
	if err != nil {
		return g, usageIf(err)
	}
	t, found, err := c.one(ctx, w)
	if err == nil {
		err = found.Readable()
	}
	if err != nil {
		w.close()
		return g, usageIf(err)
	}
	return pipe.Generation{Found: found, Root: t.URL(), Shard: func(ctx context.Context, p replica.Part) (checkpoint.ShardReader, error) {
		return t.OpenShard(ctx, found, p)
	},
		Leased: func(ctx context.Context, read func() error) error { return c.leased(ctx, w, found, read) }, Close: w.close}, nil
}

// usageIf tells the pipe which errors are of wrong arguments.
func usageIf(err error) error {
	var code *codedError
	if errors.As(err, &code) && code.code == exitUsage {
		return pipe.Usage(err)
	}
	return err
}

// leased keeps a generation while it is read. Who may only read the store reads without a pin, and is told.
func (c ckpt) leased(ctx context.Context, w *where, f catalog.Found, read func() error) error {
	if f.Old() {
		return read()
	}
	return w.cat.Leased(ctx, f, "replicad.dcp", func(err error) {
		if errors.Is(err, store.ErrRefused) {
			printf(c.std.err, "replicad: it is read without a pin, so nobody who deletes it waits: %v\n", err)
		}
	}, read)
}
