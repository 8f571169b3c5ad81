package main

import (
	"github.com/replicad/replicad/internal/durable/ckpt"
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
			return ckpt.Serve(cmd.Context(), c.Finder, args[0], f.name(), recipients, c.std.in, c.std.out)
		},
	}, true)
	cmd.Flags().StringArrayVar(&recipients, "recipient", nil,
		"encrypt what is written to this recipient of age (default: "+place.RecipientsVariable+")")
	return cmd
}
