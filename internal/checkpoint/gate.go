package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSilent marks what was given up because the file system below the durable directory did not answer.
var ErrSilent = errors.New("the file system does not answer")

const (
	lookPatience = 5 * time.Second // for a call that looks: at a name, a list, up to readStep bytes of a marker or manifest
	workPatience = time.Minute     // for one that changes something, or moves the bytes of a chunk
	stopPatience = time.Second     // for any, once the daemon stops
	silentAgain  = 5 * time.Second // between two calls that are tried while none is answered
	maxAbandoned = 64              // calls that were given up and have not returned; with so many, none is tried
)

// Gate passes calls to the file system, each in a goroutine of its own, so that a mount whose server is gone holds nobody up. The
// kernel takes such a call back for no deadline and for no signal but SIGKILL: its goroutine, and the thread that it is in, are
// abandoned knowingly, and end when the call returns or the process ends. They touch nothing but the buffer that they were given.
// While no call is answered the next ones are refused at once, but for one now and then that finds out.
type Gate struct {
	dir string
	ctx context.Context // of the daemon; after its end nobody waits for long

	mu        sync.Mutex // guards the rest
	silent    bool       // the last call that ended was given up
	stuck     string     // the first call that was, since one was answered, and when
	since     time.Time
	again     time.Time // when the next call is tried while silent
	abandoned int
}

// NewGate is the gate of a directory. ctx bounds how long its file system is waited for.
func NewGate(ctx context.Context, dir string) *Gate { return &Gate{dir: dir, ctx: ctx} }

// Look tells what a name in the directory is, before anything was opened, or written.
func (g *Gate) Look(name string) (fs.FileInfo, error) {
	return through(g, lookPatience, "looking at "+name, func() (fs.FileInfo, error) { return os.Stat(filepath.Join(g.dir, name)) })
}

// List is what a directory in the directory has, as Look.
func (g *Gate) List(name string) ([]fs.DirEntry, error) {
	return through(g, lookPatience, "listing "+name, func() ([]fs.DirEntry, error) { return os.ReadDir(filepath.Join(g.dir, name)) })
}

// passage is one call on its way. The gate's mu guards it until done is closed.
type passage[T any] struct {
	done     chan struct{}
	returned bool
	late     bool // nobody waits for it any more
	value    T
	err      error
}

// through makes one call. What it returns after it was given up is closed, if it can be.
func through[T any](g *Gate, patience time.Duration, what string, call func() (T, error)) (none T, err error) {
	if err := g.admit(); err != nil {
		return none, err
	}
	p := &passage[T]{done: make(chan struct{})}
	go func() {
		value, err := call()
		if late := arrive(g, p, value, err); late && err == nil {
			if c, ok := any(value).(io.Closer); ok {
				_ = c.Close() // whoever opened it was told that it could not
			}
		}
	}()
	stop := g.ctx.Done()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-p.done:
			return p.value, p.err
		case <-stop:
			stop = nil
			timer.Reset(stopPatience)
		case <-timer.C:
			if err := giveUp(g, p, what); err != nil {
				return none, err
			}
			return p.value, p.err // it was just in time
		}
	}
}

// arrive takes note of a call that returned, and tells whether it came too late.
func arrive[T any](g *Gate, p *passage[T], value T, err error) (late bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent = false
	if p.late {
		g.abandoned--
		return true
	}
	p.returned, p.value, p.err = true, value, err
	close(p.done)
	return false
}

// giveUp abandons a call that has not returned.
func giveUp[T any](g *Gate, p *passage[T], what string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.returned {
		return nil
	}
	p.late = true
	g.abandoned++
	now := time.Now()
	if !g.silent {
		g.silent, g.stuck, g.since = true, what, now
	}
	g.again = now.Add(silentAgain)
	return fmt.Errorf("durable directory %s: %w: %s has not returned: %s", g.dir, ErrSilent, what, remedy)
}

const remedy = "see to the mount of durable_dir and the server behind it; what waits for it goes on by itself once it answers"

// admit refuses a call while the file system is silent.
func (g *Gate) admit() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.silent && g.abandoned < maxAbandoned && !now.Before(g.again) {
		g.again = now.Add(silentAgain)
		return nil
	}
	return g.complaint(now)
}

// complaint says why no call is made; nil: nothing speaks against one.
func (g *Gate) complaint(now time.Time) error {
	switch {
	case g.abandoned >= maxAbandoned: // though others may be answered, from what the kernel remembers
		return fmt.Errorf("durable directory %s: %w: %d calls have not returned, one of them %s: see to the mount of durable_dir and the server behind it, and start this daemon again if they never do", g.dir, ErrSilent, g.abandoned, g.stuck)
	case g.silent:
		return fmt.Errorf("durable directory %s: %w: %s was given up %v ago: %s", g.dir, ErrSilent, g.stuck, now.Sub(g.since).Round(time.Second), remedy)
	}
	return nil
}

// Silent says since when, and in which call, the file system has not answered; empty: it answers, as far as is known.
func (s *Store) Silent() string {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	if err := s.gate.complaint(time.Now()); err != nil {
		return err.Error()
	}
	return ""
}

// gated is a disk behind a gate.
type gated struct {
	disk disk
	gate *Gate
}

func (d gated) change(what string, call func() error) error {
	_, err := through(d.gate, workPatience, what, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

func (d gated) mkdir(name string) error {
	return d.change("making "+name, func() error { return d.disk.mkdir(name) })
}

func (d gated) create(name string) (file, error) {
	f, err := through(d.gate, workPatience, "making "+name, func() (file, error) { return d.disk.create(name) })
	if err != nil {
		return nil, err
	}
	return gatedFile{f, name, d}, nil
}

func (d gated) rename(from, to string) error {
	return d.change("renaming "+from, func() error { return d.disk.rename(from, to) })
}

func (d gated) link(from, to string) error {
	return d.change("linking "+to, func() error { return d.disk.link(from, to) })
}

func (d gated) remove(name string) error {
	return d.change("removing "+name, func() error { return d.disk.remove(name) })
}

func (d gated) syncDir(name string) error {
	return d.change("syncing "+name, func() error { return d.disk.syncDir(name) })
}

// gatedFile is a file that is written behind a gate.
type gatedFile struct {
	file file
	name string
	disk gated
}

func (f gatedFile) Write(b []byte) (int, error) {
	return through(f.disk.gate, workPatience, "writing "+f.name, func() (int, error) {
		return f.file.Write(b)
	})
}

func (f gatedFile) Sync() error  { return f.disk.change("syncing "+f.name, f.file.Sync) }
func (f gatedFile) Close() error { return f.disk.change("closing "+f.name, f.file.Close) }

// source is a file that is read behind a gate.
type source struct {
	*os.File
	name     string
	gate     *Gate
	patience time.Duration // for one ReadAt
}

// ReadAt reads; after an error b must not be used again, since an abandoned call may still write to it.
func (f source) ReadAt(b []byte, off int64) (int, error) {
	return through(f.gate, f.patience, "reading "+f.name, func() (int, error) { return f.File.ReadAt(b, off) })
}

// forget has the kernel forget what it remembers of the file, so that the next read is one of the disk. Where it does not, the read is
// worth less, and no worse.
func (f source) forget() {
	_, _ = through(f.gate, lookPatience, "forgetting "+f.name, func() (struct{}, error) {
		raw, err := f.SyscallConn()
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, raw.Control(func(fd uintptr) { _ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED) })
	})
}

func (f source) Close() error {
	_, err := through(f.gate, lookPatience, "closing "+f.name, func() (struct{}, error) { return struct{}{}, f.File.Close() })
	return err
}

// opened is a file and what it was when it was opened.
type opened struct {
	*os.File
	info fs.FileInfo
}

// openFile opens a regular file. It does not block: a named pipe without a writer would, for ever, before anybody saw what it is.
func (t *tree) openFile(name string, patience time.Duration) (source, fs.FileInfo, error) {
	o, err := through(t.gate, lookPatience, "opening "+name, func() (opened, error) {
		f, err := t.root.OpenFile(name, os.O_RDONLY|nonBlocking, 0)
		if err != nil {
			return opened{}, err
		}
		st, err := f.Stat()
		if err == nil && !st.Mode().IsRegular() {
			err = fmt.Errorf("%s is %s, want a regular file", name, kindOf(st.Mode()))
		}
		if err != nil {
			return opened{}, errors.Join(err, f.Close())
		}
		return opened{f, st}, nil
	})
	if err != nil {
		return source{}, nil, err
	}
	return source{o.File, name, t.gate, patience}, o.info, nil
}

// kindOf names what is not a regular file.
func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return fmt.Sprintf("of mode %v", m)
}

// readStep is how many bytes of a marker or manifest one call reads: each has the patience of a look.
const readStep = 1 << 20

// readFile reads a small file whole; a longer one than most is refused before it is read.
func (t *tree) readFile(name string, most int64) ([]byte, error) {
	f, st, err := t.openFile(name, lookPatience)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size() > most {
		return nil, fmt.Errorf("%s has %d bytes, want at most %d", name, st.Size(), most)
	}
	b := make([]byte, st.Size())
	for at := 0; at < len(b); {
		n, err := f.ReadAt(b[at:min(at+readStep, len(b))], int64(at))
		if at += n; err != nil && !(errors.Is(err, io.EOF) && at == len(b)) {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return b, nil
}

// readDir lists a directory, capped.
func (t *tree) readDir(name string) ([]fs.DirEntry, error) {
	return through(t.gate, lookPatience, "listing "+name, func() ([]fs.DirEntry, error) {
		d, err := t.root.OpenFile(name, os.O_RDONLY|nonBlocking|onlyDirectory, 0)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		entries, err := d.ReadDir(maxEntries)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return entries, err
	})
}

func (t *tree) stat(name string) (fs.FileInfo, error) {
	return through(t.gate, lookPatience, "looking at "+name, func() (fs.FileInfo, error) { return t.root.Stat(name) })
}
