package node

import (
	"context"
	"os"

	"github.com/replicad/replicad/internal/journal"
)

// Hangup is what a daemon does at a SIGHUP: it reads the level of its log anew and goes on.
type Hangup struct {
	Told  <-chan os.Signal       // nil: never
	Level func() (string, error) // as the configuration has it now
}

// follow returns when ctx ends.
func (h Hangup) follow(ctx context.Context, log *journal.Journal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.Told:
		}
		level, err := h.Level()
		if err == nil {
			err = log.Relevel(level)
		}
		if err != nil {
			log.Failed("reread", "log.level of the configuration", err.Error()+": the daemon goes on with the level that it had")
		}
	}
}
