package node

import (
	"context"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/shm"
)

const (
	formerFirst = 2 * time.Second // from the first look for former keepers to the next: one that only starts has ended by then
	formerLook  = 30 * time.Second
)

// watchFormer looks for keepers of a former life of this node. One that is there at two looks is named: once in the log, and in status while it runs.
func (d *daemon) watchFormer(ctx context.Context) error {
	seen, said, pause := map[int]bool{}, map[int]bool{}, formerFirst
	for {
		found, err := shm.FormerKeepers(d.cfg.KeeperSocket)
		if err == nil { // else no keeper answers, which has words of its own
			now := map[int]bool{}
			for _, k := range found {
				now[k.PID] = true
			}
			found = slices.DeleteFunc(found, func(k shm.FormerKeeper) bool { return !seen[k.PID] })
			for _, k := range found {
				if !said[k.PID] {
					said[k.PID] = true
					d.log.Failed("keeper", string(d.cfg.Node), k.Text())
				}
			}
			seen = now
			d.former.Store(&found)
		}
		select {
		case <-time.After(pause):
			pause = formerLook
		case <-ctx.Done():
			return nil
		}
	}
}

// formerText are the former keepers, for status.
func (d *daemon) formerText() (out []string) {
	if found := d.former.Load(); found != nil {
		for _, k := range *found {
			out = append(out, k.Text())
		}
	}
	return out
}
