package main

import (
	"fmt"
	"strings"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/console"
	"github.com/spf13/cobra"
)

func newAudit(std stdio) *cobra.Command {
	return group("audit", "Check the daemon's log of who did what", newAuditVerify(std))
}

func newAuditVerify(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE...",
		Short: "Verify that an audit log is as it was written: each line has the digest of the line before",
		Long: "Follows the chain of digests through audit.jsonl of a state_dir and the rotated files (audit-*.jsonl), in\n" +
			"any order. Names each line that was changed, removed or added, and then ends with 1.\n\n" +
			"A user who can write the files can also write a whole new chain, or cut off its end. Compare the last digest\n" +
			"with one that was stored elsewhere.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := audit.Verify(args...)
			if err != nil {
				return err
			}
			for _, note := range r.Notes {
				console.Printf(std.out, "note: %s\n", note)
			}
			if len(r.Breaks) > 0 {
				return fmt.Errorf("the audit log is not as it was written:\n  %s", strings.Join(r.Breaks, "\n  "))
			}
			err = console.Write(std.out,
				"%d lines, numbers %d to %d, each follows the one before; %d were lost before they were written; digest of the last: %s\n", r.Lines, r.First, r.Last, r.Dropped, r.Digest)
			return err
		},
	}
}
