package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

// disk is what a Store changes files through, so that tests can make any step of it fail. Names are slash-separated and
// relative to the store's directory.
type disk interface {
	mkdir(name string) error // one level; an existing directory is no error
	create(name string) (file, error)
	rename(from, to string) error
	link(from, to string) error // fails where to exists
	remove(name string) error
	syncDir(name string) error
}

type file interface {
	io.Writer
	Sync() error
	Close() error
}

// rooted is the real disk.
type rooted struct{ *os.Root }

func (r rooted) mkdir(name string) error {
	if err := r.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (r rooted) create(name string) (file, error) {
	return r.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func (r rooted) rename(from, to string) error { return r.Rename(from, to) }
func (r rooted) link(from, to string) error   { return r.Link(from, to) }
func (r rooted) remove(name string) error     { return r.Remove(name) }

// Flags of an open that must not block, and of one that takes directories alone.
const (
	nonBlocking   = syscall.O_NONBLOCK | syscall.O_NOCTTY
	onlyDirectory = syscall.O_DIRECTORY
)

func (r rooted) syncDir(name string) error {
	d, err := r.OpenFile(name, os.O_RDONLY|nonBlocking|onlyDirectory, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// explain adds the remedy to what a disk says.
func (t *tree) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: free space in %s, or write durable generations less often", err, t.dir)
	case errors.Is(err, errMissing): // its writer reported it as fsynced
		return fmt.Errorf("%w in %s: durable_dir must be one file system that all nodes mount, but the writer has another than this node", err, t.dir)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: make %s writable for this user", err, t.dir)
	}
	return err
}

// makeDirs makes a directory and what is missing above it. Each is synced into its parent, also one that was there: its
// maker may have died before that.
func (t *tree) makeDirs(name string) error {
	parts := strings.Split(name, "/")
	for i := range parts {
		dir := path.Join(parts[:i+1]...)
		if err := t.disk.mkdir(dir); err != nil {
			return err
		}
		if err := t.disk.syncDir(path.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}

// writeFile makes name from what write writes: temporary name, sync, then place puts it there, then the directory is synced.
func (t *tree) writeFile(name string, place func(from, to string) error, write func(io.Writer) error) (err error) {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	temp := path.Join(dir, tempPrefix+base+"-"+t.tag())
	f, err := t.disk.create(temp)
	if err != nil {
		return err
	}
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			_ = t.disk.remove(temp) // Prune removes it otherwise
		}
	}()
	if err := write(newFlushed(f)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	closed = true
	if err := f.Close(); err != nil {
		return err
	}
	if err := place(temp, name); err != nil {
		return err
	}
	return t.disk.syncDir(dir)
}

// How many bytes of a file are synced at once: what the disk takes in syncAim, by how long the sync before took. One sync of a whole shard would
// take longer than a call may, and fill the machine's memory with what is not on disk yet. One of 64 MiB on a slow disk would leave the writer
// without a sign of progress for seconds: it would be taken for one whose file system hangs, each time.
const (
	syncLeast = 256 << 10
	syncMost  = 64 << 20
	syncAim   = 500 * time.Millisecond
)

// syncNext is how many bytes to sync at once after a sync of so many took so long.
func syncNext(bytes int, took time.Duration) int {
	fits := float64(bytes) * float64(syncAim) / float64(max(took, 1))
	return int(min(max(fits, syncLeast), 2*float64(bytes), syncMost))
}

// flushed syncs a file while it is written.
type flushed struct {
	file
	since int // bytes that were not synced
	every int
}

func newFlushed(f file) *flushed { return &flushed{file: f, every: syncLeast} }

func (f *flushed) Write(b []byte) (int, error) {
	n, err := f.file.Write(b)
	if f.since += n; err == nil && f.since >= f.every {
		began := time.Now()
		err = f.Sync()
		f.since, f.every = 0, max(syncNext(f.since, time.Since(began)), syncLeast)
	}
	return n, err
}

// linkOnce places a file where none may be.
func (t *tree) linkOnce(from, to string) error {
	if err := t.disk.link(from, to); err != nil {
		return err
	}
	return t.disk.remove(from)
}
