// Command replicad keeps the training state of a job's ranks mirrored in host memory and brings lost ranks back from it.
//
// Each verb has a file here: it turns flags into a configuration, calls the package that does the work, and turns its error
// into an exit code (exit.go). There is no logic here, no global state and no other call of os.Exit than main's.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/replicad/replicad/internal/launch"
)

func main() { os.Exit(run(untilSignal(), os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr})) }

// untilSignal is done at the first SIGINT or SIGTERM, with a cause that names it; the second one ends the process as usual.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	go func() { // lives as long as the process
		s := <-got
		signal.Stop(got)
		cancel(launch.Signaled{Signal: s.(syscall.Signal)})
	}()
	return ctx
}
