package main

import (
	"context"
	"os"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/pipe"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/spf13/cobra"
)

// pipe serves generations to another program. It is hidden: nobody types requests. Those that read are for any program (docs/c.md), the others are between
// this program and the package of its release.
func (c ckptVerbs) pipe() *cobra.Command {
	var f common
	var recipients []string
	cmd := f.add(&cobra.Command{
		Use: "pipe WHERE", Short: "Serve generations to the Python package over standard input and output", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return pipe.Serve(cmd.Context(), c.std.in, c.std.out, pipe.Stores{
				Read: func(ctx context.Context, job, at string, read func(pipe.Generation) error) error {
					return ckpt.Serve(ctx, c.Finder, args[0], job, at, f.name(), read)
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
