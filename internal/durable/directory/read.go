package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/durable/store"
)

// content is a version of an object, open.
type content struct {
	file
	info   fs.FileInfo
	number int // 0: as PutNew or Complete made it
}

// whole reads a small content.
func (c content) whole(ctx context.Context) ([]byte, error) {
	b := make([]byte, c.info.Size())
	return b, c.readAt(ctx, b, 0, lookPatience)
}

// digits is what the name of a version has at least.
const digits = 10

func numbered(dir string, n int) string { return path.Join(dir, fmt.Sprintf("%0*d", digits, n)) }

// numberOf reads a name as numbered makes it.
func numberOf(name string) (n int, ok bool) {
	u, err := strconv.ParseUint(name, 10, 63)
	return int(u), err == nil && u > 0 && (len(name) == digits || len(name) > digits && name[0] != '0')
}

// numbers lists the versions in a directory, rising; none where it is not there.
func (t *tree) numbers(ctx context.Context, dir string) (list []int, err error) {
	err = t.each(ctx, dir, func(e fs.DirEntry) {
		if n, ok := numberOf(e.Name()); ok && e.Type().IsRegular() {
			list = append(list, n)
		}
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	slices.Sort(list)
	return list, err
}

// listStep is how many entries of a directory one call reads.
const listStep = 1024

// each calls visit for all entries of a directory, as the file system has them.
func (t *tree) each(ctx context.Context, name string, visit func(fs.DirEntry)) error {
	d, err := t.openList(ctx, name)
	if err != nil {
		return err
	}
	var listing sync.Mutex              // held while the kernel lists: a directory that is closed meanwhile panics in the call that was given up
	defer d.closeBy(ctx, func() error { //nolint:errcheck // it was only read
		listing.Lock()
		defer listing.Unlock()
		return d.Close()
	})
	for {
		entries, err := through(ctx, t.gate, lookPatience, "listing "+name, func() ([]fs.DirEntry, error) {
			listing.Lock()
			defer listing.Unlock()
			return d.ReadDir(listStep)
		})
		for _, e := range entries {
			visit(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// openList opens a directory to be listed. ReadDir of a file that came from an os.Root looks at each entry, which are hundreds of
// requests to a server for a list of versions. A descriptor made outside of it takes the types that come with the names.
func (t *tree) openList(ctx context.Context, name string) (file, error) {
	return through(ctx, t.gate, lookPatience, "opening "+name, func() (file, error) {
		f, err := t.disk.open(name)
		if err != nil {
			return file{}, err
		}
		again, err := duplicate(f)
		return file{again, name, t}, errors.Join(err, f.Close())
	})
}

func duplicate(f *os.File) (again *os.File, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var n int
		if n, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			again = os.NewFile(uintptr(n), f.Name())
		}
	})
	return again, errors.Join(cerr, err)
}

func (t *tree) openFile(ctx context.Context, name string) (file, error) {
	f, err := through(ctx, t.gate, lookPatience, "opening "+name, func() (file, error) {
		f, err := t.disk.open(name)
		return file{f, name, t}, err
	})
	return f, err
}

// openRegular opens a file that is one, by no symbolic link.
func (t *tree) openRegular(ctx context.Context, name string) (content, error) {
	info, err := t.lstat(ctx, name)
	if err == nil {
		err = regular(name, info)
	}
	if err != nil {
		return content{}, err
	}
	f, err := t.openFile(ctx, name)
	if err != nil {
		return content{}, err
	}
	info, err = through(ctx, t.gate, lookPatience, "looking at "+name, f.Stat)
	if err == nil {
		err = regular(name, info) // it may be another by now
	}
	if err != nil {
		return content{}, errors.Join(err, f.close(ctx))
	}
	return content{file: f, info: info}, nil
}

func regular(name string, info fs.FileInfo) error {
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return fmt.Errorf("%w: %s is a directory", store.ErrAbsent, name)
	}
	return fmt.Errorf("%w: %s is %s, want a regular file", store.ErrRefused, name, kindOf(info.Mode()))
}

// kindOf names what is not a regular file.
func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return fmt.Sprintf("of mode %v", m)
}

// current opens the newest version of an object. The key's own file is opened before the versions are listed: it shows a version only
// after that was linked, so a file that was opened where no version is listed is the first content.
func (t *tree) current(ctx context.Context, key string) (content, error) {
	own, err := t.openRegular(ctx, key)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return content{}, store.ErrAbsent
	}
	if err != nil {
		return content{}, err
	}
	for range 10 { // a version that was listed may be removed before it is opened
		list, err := t.numbers(ctx, versionDir(key))
		if err != nil {
			return content{}, errors.Join(err, own.close(ctx))
		}
		if len(list) == 0 {
			return own, nil
		}
		newest := list[len(list)-1]
		c, err := t.openRegular(ctx, numbered(versionDir(key), newest))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		c.number = newest
		return c, errors.Join(err, own.close(ctx))
	}
	return content{}, errors.Join(fmt.Errorf("%w: its versions change faster than they are read", store.ErrDoubtful), own.close(ctx))
}

// Get reads a small object whole.
func (s *Store) Get(ctx context.Context, key string, most int64) ([]byte, store.Version, error) {
	var b []byte
	var v store.Version
	err := s.reading(ctx, "get", key, func(c content) (err error) {
		if c.info.Size() > min(most, store.MaxSmall) {
			return fmt.Errorf("%w: it has %d bytes, want at most %d", store.ErrRefused, c.info.Size(), min(most, store.MaxSmall))
		}
		b, err = c.whole(ctx)
		v = versionOf(c.number, b)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return b, v, nil
}

// ReadRange fills b from byte off of an object.
func (s *Store) ReadRange(ctx context.Context, key string, off int64, b []byte) error {
	return s.reading(ctx, "read", key, func(c content) error {
		if off < 0 || off+int64(len(b)) > c.info.Size() {
			return fmt.Errorf("%w: bytes %d to %d are wanted, it has %d", store.ErrRefused, off, off+int64(len(b)), c.info.Size())
		}
		return c.readAt(ctx, b, off, workPatience)
	})
}

// Stat says what is there.
func (s *Store) Stat(ctx context.Context, key string) (info store.Info, err error) {
	err = s.reading(ctx, "stat", key, func(c content) error {
		info = infoOf(key, c.info)
		return nil
	})
	return info, err
}

// Forget has the next read of an object come from the disk.
func (s *Store) Forget(ctx context.Context, key string) error {
	return s.reading(ctx, "forget", key, func(c content) error {
		_, err := through(ctx, c.tree.gate, lookPatience, "forgetting "+c.name, func() (struct{}, error) {
			raw, err := c.SyscallConn()
			if err != nil {
				return struct{}{}, err
			}
			return struct{}{}, raw.Control(func(fd uintptr) { _ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED) }) // advice
		})
		return err
	})
}

func infoOf(key string, i fs.FileInfo) store.Info {
	return store.Info{Key: key, Size: i.Size(), Modified: i.ModTime().Round(time.Millisecond)}
}

// reading calls do with the newest version of an object.
func (s *Store) reading(ctx context.Context, what, key string, do func(content) error) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	t, err := s.at(ctx)
	if err != nil {
		return s.answer(what+" "+key, err)
	}
	c, err := t.current(ctx, key)
	if err == nil {
		err = do(c)
		_ = c.close(ctx) // it was only read
	}
	return s.answer(what+" "+key, err)
}
