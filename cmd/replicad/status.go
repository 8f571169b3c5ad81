package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/replicad/replicad/internal/admin"
	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/status"
	"github.com/spf13/cobra"
)

func newStatus(std stdio) *cobra.Command {
	var a adminFlags
	var asJSON, network bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who is alive, each job's epoch and committed step, and which node holds which generation",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("status takes no name, and %q is given: it shows all nodes and jobs", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := a.asked(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if err := console.JSON(std.out, json.RawMessage(body)); err != nil {
					return fmt.Errorf("status: %w", err)
				}
				return nil
			}
			s, err := admin.ReadStatus(body)
			if err != nil {
				return err
			}
			if network {
				return status.PrintNetwork(std.out, s)
			}
			return status.Print(std.out, s)
		},
	}
	a.addFlags(cmd)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if strings.HasPrefix(err.Error(), "unknown flag: --watch") {
			return fmt.Errorf("%w: `watch -n 1 replicad status` shows it again each second", err)
		}
		return err
	})
	cmd.Flags().BoolVar(&network, "network", false, "show over what state moves to and from this node, how fast, and what slows it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, for programs")
	return cmd
}

// asked finds the socket and asks the daemon there for its status, in JSON.
func (a *adminFlags) asked(ctx context.Context) ([]byte, error) {
	if _, err := a.find(); err != nil {
		return nil, err
	}
	return a.StatusBody(ctx)
}
