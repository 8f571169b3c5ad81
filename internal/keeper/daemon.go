package keeper

import (
	"context"
	"io"
	"path/filepath"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/journal"
	"github.com/rs/zerolog"
)

// ForDaemon waits for the keeper or starts one if none answers. A daemon that does not come up takes its own back: it holds nothing yet.
func ForDaemon(ctx context.Context, c *config.Config, wait bool, stderr io.Writer) (undo func(), err error) {
	if wait {
		return func() {}, Await(ctx, c.KeeperSocket)
	}
	pid, err := Ensure(ctx, c.KeeperSocket, filepath.Join(c.StateDir, "keeper.log"), stderr)
	if err != nil || pid == 0 {
		return func() {}, err
	}
	log := zerolog.New(journal.Printed(stderr)).With().Str("time", time.Now().Format(time.RFC3339Nano)).Logger()
	log.Info().Str("event", "keeper_started").Int("pid", pid).Str("socket",
		c.KeeperSocket).Msg("no keeper answered, so one was started; it stays when the daemon ends and holds the ranks' memory until it " +
		"gets SIGTERM")
	return func() {
		if err := end(pid, c.KeeperSocket); err != nil {
			log.Warn().Str("event", "keeper_left").Int("pid", pid).Err(err).Msg("the keeper that was started does not end: send it SIGTERM")
		}
	}, nil
}
