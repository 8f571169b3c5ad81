package main

import (
	"fmt"
	"strings"

	"github.com/replicad/replicad/internal/audit"
	"github.com/spf13/cobra"
)

func newAudit(std stdio) *cobra.Command {
	return group("audit", "Look at what the daemon wrote of who did what", newAuditVerify(std))
}

func newAuditVerify(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE...",
		Short: "Whether the lines of an audit log are those that were written: each has the digest of the one before",
		Long: "Follows the chain of digests through audit.jsonl of a state_dir, and the files that were rotated (audit-*.jsonl), in whatever order.\n" +
			"It names each line that was changed, taken out or put in, and ends with 1 then. Who can write the files can also write a whole new\n" +
			"chain, or cut its end off: compare the last digest with one that was kept elsewhere.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := audit.Verify(args...)
			if err != nil {
				return err
			}
			for _, note := range r.Notes {
				fmt.Fprintln(std.out, "note: "+note)
			}
			if len(r.Breaks) > 0 {
				return fmt.Errorf("the audit log is not as it was written:\n  %s", strings.Join(r.Breaks, "\n  "))
			}
			_, err = fmt.Fprintf(std.out, "%d lines, numbers %d to %d, each follows the one before; %d were lost before they were written; digest of the last: %s\n", r.Lines, r.First, r.Last, r.Dropped, r.Digest)
			return err
		},
	}
}
