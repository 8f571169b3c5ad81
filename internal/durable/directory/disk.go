package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// disk is what a store calls the kernel through, so that tests can make any call of it fail. Names are relative to the root.
type disk interface {
	mkdir(name string) error // one level; an existing directory is no error
	create(name string) (*os.File, error)
	open(name string) (*os.File, error)
	lstat(name string) (fs.FileInfo, error)
	link(from, to string) error // fails where to exists
	rename(from, to string) error
	remove(name string) error
	syncDir(name string) error
}

// rooted is the real disk.
type rooted struct{ *os.Root }

// Flags of an open that must not block, and of one that takes directories alone.
const (
	nonBlocking   = syscall.O_NONBLOCK | syscall.O_NOCTTY
	onlyDirectory = syscall.O_DIRECTORY
)

func (r rooted) mkdir(name string) error {
	if err := r.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (r rooted) create(name string) (*os.File, error) {
	return r.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// open does not block: a named pipe without a writer would, for ever, before anybody saw what it is.
func (r rooted) open(name string) (*os.File, error) {
	return r.OpenFile(name, os.O_RDONLY|nonBlocking, 0)
}

func (r rooted) lstat(name string) (fs.FileInfo, error) { return r.Lstat(name) }
func (r rooted) link(from, to string) error             { return r.Link(from, to) }
func (r rooted) rename(from, to string) error           { return r.Rename(from, to) }
func (r rooted) remove(name string) error               { return r.Remove(name) }

func (r rooted) syncDir(name string) error {
	d, err := r.OpenFile(name, os.O_RDONLY|nonBlocking|onlyDirectory, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// The calls of a tree, through its gate.

func (t *tree) change(ctx context.Context, what string, call func() error) error {
	_, err := through(ctx, t.gate, workPatience, what, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

func (t *tree) mkdir(ctx context.Context, name string) error {
	return t.change(ctx, "making "+name, func() error { return t.disk.mkdir(name) })
}

func (t *tree) create(ctx context.Context, name string) (*os.File, error) {
	return through(ctx, t.gate, workPatience, "making "+name, func() (*os.File, error) { return t.disk.create(name) })
}

func (t *tree) link(ctx context.Context, from, to string) error {
	err := t.change(ctx, "linking "+to, func() error { return t.disk.link(from, to) })
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) {
		return fmt.Errorf("%w: the file system has no hard links: take another one: %w", store.ErrRefused, err)
	}
	return err
}

func (t *tree) rename(ctx context.Context, from, to string) error {
	return t.change(ctx, "renaming "+from, func() error { return t.disk.rename(from, to) })
}

func (t *tree) remove(ctx context.Context, name string) error {
	return t.change(ctx, "removing "+name, func() error { return t.disk.remove(name) })
}

func (t *tree) syncDir(ctx context.Context, name string) error {
	return t.change(ctx, "syncing "+name, func() error { return t.disk.syncDir(name) })
}

func (t *tree) lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return through(ctx, t.gate, lookPatience, "looking at "+name, func() (fs.FileInfo, error) { return t.disk.lstat(name) })
}

// step is how many bytes one call moves: a slow disk shows progress, and a call that hangs is known for it.
const step = 1 << 20

// file is an open file behind the gate. After an error that is errAbandoned the buffer that was passed may still be read or written.
type file struct {
	*os.File
	name string
	tree *tree
}

func (f file) writeAt(ctx context.Context, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := through(ctx, f.tree.gate, workPatience, "writing "+f.name, func() (int, error) { return f.WriteAt(b[:min(step, len(b))], off) })
		if err != nil {
			return err
		}
		store.Moved(ctx, n)
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// readAt fills b.
func (f file) readAt(ctx context.Context, b []byte, off int64, patience time.Duration) error {
	for len(b) > 0 {
		n, err := through(ctx, f.tree.gate, patience, "reading "+f.name, func() (int, error) { return f.ReadAt(b[:min(step, len(b))], off) })
		b, off = b[n:], off+int64(n)
		if err != nil && len(b) > 0 {
			return err
		}
	}
	return nil
}

func (f file) sync(ctx context.Context) error {
	return f.tree.change(ctx, "syncing "+f.name, f.Sync)
}

// close waits for a kernel that does not answer no longer than for a look: nothing hangs on it, since what is written is synced before.
// It passes no gate, which would refuse it while the file system is silent, and the descriptor would stay.
func (f file) close(ctx context.Context) error { return f.closeBy(ctx, f.Close) }

func (f file) closeBy(ctx context.Context, call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	patience := lookPatience
	if ctx.Err() != nil {
		patience = stopPatience
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%w: closing %s has not returned", errAbandoned, f.name)
	}
}
