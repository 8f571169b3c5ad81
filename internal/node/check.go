package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/durable"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/unixsock"
	"golang.org/x/sys/unix"
)

// Check looks at the keys and directories that a configuration names with what a daemon does when it starts, and returns every fault.
// It leaves nothing behind: a file is written into directories that are there and removed, and none is made.
func Check(ctx context.Context, c *config.Config) error {
	id, err := Identity(c)
	wrong := checkKeys(ctx, c)
	_, nobody := rankUsers(c)
	faults := []error{err, wrong, nobody}
	if missing(c.StateDir) {
		faults = append(faults, canMake("state_dir", c.StateDir))
	} else {
		if id != nil {
			_, err := checkMark(c.StateDir, stateMark{Magic: "replicad-node", Version: 1, Cluster: id.Cluster, Node: c.Node})
			faults = append(faults, err)
		}
		faults = append(faults, probeState(c.StateDir))
	}
	if c.InBucket() {
		faults = append(faults, checkBucket(ctx, c))
	} else if !OwnsDurable(c) || !missing(c.DurableDir) { // a daemon makes its own
		s, err := tier.OpenDirectory(ctx, c.DurableDir, tier.Settings{})
		if err == nil {
			err = s.Close()
		}
		faults = append(faults, err)
	}
	for _, s := range []struct{ field, path string }{{"socket", c.Socket}, {"admin_socket", c.AdminSocket}, {"keeper_socket", c.KeeperSocket}} {
		if missing(filepath.Dir(s.path)) {
			faults = append(faults, canMake(s.field, filepath.Dir(s.path)))
			continue
		}
		d, err := unixsock.OpenDir(s.path)
		if err == nil {
			err = d.Close()
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// checkKeys reads the keys of the durable tier. A program that prints them is looked at, and not run: a configuration is checked before it is trusted.
func checkKeys(ctx context.Context, c *config.Config) error {
	if len(c.DurableIdentitiesCommand) == 0 {
		_, err := durableKeys(ctx, c)
		return err
	}
	if err := unix.Access(c.DurableIdentitiesCommand[0], unix.X_OK); err != nil {
		return fmt.Errorf("durable_identities_command %s: %w: name a program that the daemon's user may run", c.DurableIdentitiesCommand[0], err)
	}
	return nil
}

// KeysUnread says that the keys of the durable tier were not read, because a program prints them; empty: they were, or there are none.
func KeysUnread(c *config.Config) string {
	if len(c.DurableIdentitiesCommand) == 0 {
		return ""
	}
	return fmt.Sprintf("durable_identities_command %s: it may be run, and was not: whether it prints a key of durable_recipients shows when the daemon starts", c.DurableIdentitiesCommand[0])
}

// checkBucket tries the store of a bucket's URL.
func checkBucket(ctx context.Context, c *config.Config) error {
	st, err := durable.Open(ctx, c.Durable, bucketSettings(c, nil))
	if err != nil {
		return fmt.Errorf("durable: %w", err)
	}
	t := tier.New(st, tier.Settings{Unconditional: c.Store.Conditions == config.NoConditions})
	return errors.Join(t.Prove(ctx), t.Close())
}

// OwnsDurable tells whether durable_dir is the node's own, which its daemon makes. One elsewhere is not made: it is a mount point, and a
// folder in its place would be a durable tier that no other node sees.
func OwnsDurable(c *config.Config) bool {
	return !c.InBucket() && filepath.Clean(c.DurableDir) == filepath.Join(c.StateDir, "durable")
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// canMake tells why a directory that is missing can't be made.
func canMake(field, dir string) error {
	above, err := filepath.Abs(dir)
	for err == nil && missing(above) {
		above = filepath.Dir(above)
	}
	if err == nil {
		err = unix.Access(above, unix.W_OK|unix.X_OK)
	}
	if err == nil {
		if st, serr := os.Stat(above); serr != nil || !st.IsDir() {
			err = errors.Join(unix.ENOTDIR, serr)
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s is missing and can't be made in %s: %w: make it for the daemon's user, or set %s to another", field, dir, above, err, field)
	}
	return nil
}

// Room says how much the file systems of a configuration's directories have left, a line each; warnings are of those that a reboot empties.
func Room(c *config.Config) (lines, warnings []string) {
	for _, d := range []struct{ field, path string }{{"state_dir", c.StateDir}, {"durable_dir", c.DurableDir}} {
		var st unix.Statfs_t
		if unix.Statfs(d.path, &st) != nil {
			continue // it is to be made, or Check has said what is wrong with it
		}
		free := config.Bytes(st.Bavail * uint64(st.Bsize) >> 20 << 20)
		lines = append(lines, fmt.Sprintf("%s %s: %v free", d.field, d.path, free))
		if st.Type == unix.TMPFS_MAGIC {
			warnings = append(warnings, fmt.Sprintf("%s %s is in memory (tmpfs): a reboot empties it; use a directory on a disk", d.field, d.path))
		}
	}
	return lines, warnings
}
