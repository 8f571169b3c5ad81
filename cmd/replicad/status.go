package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/status"
	"github.com/spf13/cobra"
)

func newStatus(std stdio) *cobra.Command {
	var a admin
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
			body, err := a.statusBody(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if err := console.JSON(std.out, json.RawMessage(body)); err != nil {
					return fmt.Errorf("status: %w", err)
				}
				return nil
			}
			s, err := readStatus(body)
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

// statusBody asks the daemon for its status, in JSON.
func (a *admin) statusBody(ctx context.Context) ([]byte, error) {
	if _, err := a.find(); err != nil {
		return nil, err
	}
	return a.call(ctx, http.MethodGet, "/status", nil)
}

// status asks the daemon for its status.
func (a *admin) status(ctx context.Context) (control.Status, error) {
	body, err := a.statusBody(ctx)
	if err != nil {
		return control.Status{}, err
	}
	return readStatus(body)
}

func readStatus(body []byte) (s control.Status, err error) {
	if err := json.Unmarshal(body, &s); err != nil {
		return s, fmt.Errorf("status: %w (are this program and the daemon of one release?)", err)
	}
	return s, nil
}
