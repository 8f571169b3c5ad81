package main

import (
	"fmt"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/keeper"
	"github.com/replicad/replicad/internal/launch"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
)

func newKeeper(std stdio) *cobra.Command {
	var socket, logFile string
	var detach bool
	cmd := &cobra.Command{
		Use:   "keeper --socket PATH",
		Short: "Hold the memory of this node's ranks while its daemon is away",
		Long: "Holds the descriptors of arenas, so that a restarted daemon finds the memory of its ranks.\n\n" +
			"`replicad daemon` starts a keeper if none answers. The keeper stays when the daemon ends. When the\n" +
			"keeper ends beside its daemon, the next keeper gets the memory from the daemon. When both end, only the\n" +
			"ranks that run still have theirs. SIGHUP does nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if socket == "" {
				return usage.Wrong(fmt.Errorf("no socket: give --socket PATH, the daemon's keeper_socket"))
			}
			if detach {
				pid, err := keeper.Detach(cmd.Context(), socket, logFile)
				if err == nil {
					err = console.Write(std.out, "%d\n", pid)
				}
				return err
			}
			_, stop := launch.Hangups() // the terminal that it was started in may go
			defer stop()
			return servedUntil(cmd.Context(), shm.RunKeeper(cmd.Context(), socket))
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "unix socket `PATH` to listen on")
	cmd.Flags().BoolVar(&detach, "detach", false, "start the keeper in a session of its own, print its process id, and return once it answers")
	cmd.Flags().StringVar(&logFile, "log", "", "with --detach: `FILE` for the keeper's messages")
	return cmd
}
