package shm

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
)

// The test binary runs again as a keeper or as a daemon that is to be killed, where these are set to the keeper's socket.
const (
	envKeeper = "SHM_TEST_KEEPER"
	envDaemon = "SHM_TEST_DAEMON"
)

func TestMain(m *testing.M) {
	for env, run := range map[string]func(ctx context.Context, socket string) error{envKeeper: runTestKeeper, envDaemon: runTestDaemon} {
		if socket := os.Getenv(env); socket != "" {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			err := run(ctx, socket)
			stop()
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	leakcheck.Main(m)
}
