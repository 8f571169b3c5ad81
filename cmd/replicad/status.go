package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/replicad/replicad/internal/control"
	"github.com/spf13/cobra"
)

func newStatus(std stdio) *cobra.Command {
	var a admin
	var asJSON, network bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who is alive, each job's epoch and committed step, and which node holds which generation",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := a.find(); err != nil {
				return err
			}
			body, err := a.call(cmd.Context(), http.MethodGet, "/status", nil)
			if err != nil {
				return err
			}
			if asJSON {
				var out bytes.Buffer
				if err := json.Indent(&out, bytes.TrimSpace(body), "", "  "); err != nil {
					return fmt.Errorf("status: %w", err)
				}
				out.WriteByte('\n')
				_, err = out.WriteTo(std.out)
				return err
			}
			var s control.Status
			if err := json.Unmarshal(body, &s); err != nil {
				return fmt.Errorf("status: %w (are this program and the daemon of one release?)", err)
			}
			if network {
				return printNetwork(std.out, s)
			}
			return printStatus(std.out, s)
		},
	}
	a.addFlags(cmd)
	cmd.Flags().BoolVar(&network, "network", false, "show over what state moves to and from this node, how fast, and what slows it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, for programs")
	return cmd
}
