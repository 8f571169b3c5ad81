package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/chaos/cluster"
)

// durable is the directory that all nodes write to, on a small file system of its own where this process may mount one: it lies in
// a view of mounts that only the cluster's processes share, and is gone with them. Its methods run on the thread that starts them.
type durable struct {
	spawn *cluster.Spawner
	root  string // mounted, or a plain directory
	dir   string // in root; what the configurations name
	own   bool   // mounted
	bytes int64  // of the file system
	why   string // not
}

const (
	durableBytes = 96 << 20
	durableRoom  = 7 // generations of a state: three that are kept, those that wait to be read back on a busy machine, and one that is written
)

func newDurable(spawn *cluster.Spawner, root string, bytes int64) (*durable, error) {
	d := &durable{spawn: spawn, root: root, bytes: bytes, dir: filepath.Join(root, "durable")}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	err := spawn.Do(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("a view of mounts of its own: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Mount("chaos", root, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
			return fmt.Errorf("mount a tmpfs: %w", err)
		}
		return nil
	})
	d.own = err == nil
	if err != nil {
		d.why = err.Error()
	}
	return d, spawn.Do(func() error { return os.MkdirAll(d.dir, 0o700) })
}

// lacks says why a kind can't be had on this machine; empty: it can.
func (d *durable) lacks(kind string) string {
	switch {
	case kind == diskFull && !d.own:
		return "it needs a file system of its own, which only root may mount (" + d.why + ")"
	case kind == diskReadOnly && !d.own && os.Geteuid() == 0:
		return "root may write everywhere, and no file system could be mounted to forbid it (" + d.why + ")"
	}
	return ""
}

// fault begins one and returns what ends it.
func (d *durable) fault(kind string) (end func() error, err error) {
	switch kind {
	case diskFull:
		filler := filepath.Join(d.root, "filler")
		err = d.spawn.Do(func() error {
			return fill(filler, d.bytes)
		})
		return func() error { return d.spawn.Do(func() error { return os.Remove(filler) }) }, err
	case diskReadOnly:
		return func() error { return d.spawn.Do(func() error { return d.forbid(false) }) }, d.spawn.Do(func() error { return d.forbid(true) })
	}
	away := d.dir + ".away"
	err = d.spawn.Do(func() error { return errors.Join(os.Rename(d.dir, away), os.Mkdir(d.dir, 0o700)) })
	return func() error {
		return d.spawn.Do(func() error { return errors.Join(os.RemoveAll(d.dir), os.Rename(away, d.dir)) })
	}, err
}

// fill writes a file until there is no room for more.
func fill(file string, most int64) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	piece := make([]byte, 1<<20)
	for n := int64(0); n <= most; n += int64(len(piece)) {
		if _, err := f.Write(piece); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return fmt.Errorf("fill %s: %d bytes were not too many", file, most)
}

// forbid writing: the mount's, or where there is none every directory's, which is no law for root.
func (d *durable) forbid(on bool) error {
	if d.own {
		flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND)
		if on {
			flags |= unix.MS_RDONLY
		}
		var err error
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if err = unix.Mount("", d.root, "", flags, ""); !errors.Is(err, unix.EBUSY) { // a file is being written
				break
			}
		}
		return err
	}
	mode := os.FileMode(0o700)
	if on {
		mode = 0o500
	}
	return filepath.WalkDir(d.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil //nolint:nilerr // pruned meanwhile
		}
		return os.Chmod(path, mode)
	})
}

// forget removes the generations of a job that is over. Nobody reads them again, and those of one job after another would fill the disk.
func (d *durable) forget(job string) error {
	return d.spawn.Do(func() error { return os.RemoveAll(filepath.Join(d.dir, job)) })
}

// markers counts the complete generations in the directory that the configurations name.
func (d *durable) markers() (n int) {
	_ = d.spawn.Do(func() error {
		list, err := filepath.Glob(filepath.Join(d.dir, "*", "*", "commits", "*.json"))
		n = len(list)
		return err
	})
	return n
}
