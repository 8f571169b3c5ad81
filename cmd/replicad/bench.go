package main

import (
	"errors"

	"github.com/replicad/replicad/internal/bench"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
)

func newBench(std stdio) *cobra.Command {
	o := bench.Options{Version: versionText()}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine's figures, each beside its limit, and write bench.json and a page",
		Long: "Measures what replicad does on this machine, each figure beside its limit by turns in the same run:\n" +
			"steps, captures, transfers, commits, recoveries, memory. Writes bench.json and bench.html, a page with\n" +
			"plots. It takes about ten minutes on two cores, which should have nothing else to do; the figures of a\n" +
			"busy machine are its load's.\n\n" +
			"A figure that misses what is wanted is shown as missed; the exit code is 1 only where something could\n" +
			"not be measured, or with --strict.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := bench.Run(cmd.Context(), o, std.err)
			if errors.As(err, new(*bench.UsageError)) {
				return usage.Wrong(err)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Out, "out", ".", "`DIR` for bench.json and bench.html")
	f.StringVar(&o.Only, "only", "", "measure only figures whose names begin with `PREFIX`, as transfer/tls")
	f.BoolVar(&o.Quick, "quick", false, "smaller and with fewer rounds: a minute or two, to see that it works")
	f.Uint64Var(&o.PartMiB, "part-mib", 0, "a transfer moves a part of `N` MiB (default 256, and 64 with --quick), which takes twice the memory; a durable write has as many (default 4096, and 64 with --quick)")
	f.BoolVar(&o.Strict, "strict", false, "fail where a figure misses what is wanted")
	f.StringVar(&o.CBench, "c-bench", "", "`FILE`: the C program of bench/words_and_capture (default: words_and_capture beside this program);\nwithout it steps and captures are left out")
	return cmd
}
