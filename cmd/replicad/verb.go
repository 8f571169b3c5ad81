package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// stdio is where a verb reads and writes, so that tests can run it in process.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

const showsAll = "`replicad status` shows all nodes and jobs"

// elsewhere has the verbs of other programs, and what does the same here.
var elsewhere = map[string]string{
	"replicad top":         showsAll + "; `watch -n 1 replicad status` goes on showing them",
	"replicad ps":          showsAll,
	"replicad list":        showsAll,
	"replicad ls":          showsAll + ", and `replicad ckpt ls` generations on disk",
	"replicad logs":        "a daemon's log is its stderr (`journalctl -u replicad`), a rank's output is its launcher's",
	"replicad start":       "`replicad daemon` starts a node, `replicad run` a job",
	"replicad stop":        "`replicad job stop NAME` stops a job, SIGTERM a daemon",
	"replicad job ls":      showsAll,
	"replicad job list":    showsAll,
	"replicad job status":  showsAll,
	"replicad job show":    showsAll,
	"replicad job start":   "`replicad run` starts a job",
	"replicad job cancel":  "`replicad job end NAME` ends a job for good, `replicad job stop NAME` for now",
	"replicad job kill":    "`replicad job end NAME` ends a job for good, `replicad job stop NAME` for now",
	"replicad ckpt rm":     "`replicad ckpt prune` deletes what a rule does not keep, `replicad ckpt unpin` lets a kept one go",
	"replicad ckpt delete": "`replicad ckpt prune` deletes what a rule does not keep, `replicad ckpt unpin` lets a kept one go",
	"replicad ckpt list":   "`replicad ckpt ls` lists generations",
	"replicad kill":        "`replicad job end NAME` ends a job for good, `replicad job stop NAME` for now",
	"replicad torchrun":    "`replicad run --job NAME --world N -- COMMAND` starts a job, in torchrun's place",
	"replicad node ls":     showsAll,
	"replicad node list":   showsAll,
	"replicad node status": showsAll,
}

func unknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if use, known := elsewhere[cmd.CommandPath()+" "+args[0]]; known {
		return fmt.Errorf("unknown verb %q: %s", args[0], use)
	}
	cmd.SuggestionsMinimumDistance = 2 // letters; cobra itself sets it elsewhere
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("unknown verb %q: did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown verb %q", args[0])
}

// group is a verb that only has verbs of its own.
func group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: unknownVerb, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	g.AddCommand(verbs...)
	return g
}
