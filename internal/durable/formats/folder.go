package formats

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Folder is a folder that others wrote: what is opened in it lies in it, and is a regular file. ReadAt may be called by several goroutines, and
// the rest by one.
type Folder struct {
	dir  string
	root *os.Root

	mu   sync.RWMutex // held while a file is read: none is closed then
	open []*File      // guarded by mu: the last ones that were opened
}

// File is a regular file of a folder.
type File struct {
	*os.File
	Name string // within the folder
	Size int64
}

// maxOpen bounds the files that are open at once.
const maxOpen = 64

// OpenFolder opens a folder.
func OpenFolder(dir string) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Folder{dir: dir, root: root}, nil
}

// Dir is where it lies.
func (f *Folder) Dir() string { return f.dir }

// Close closes it, and its files.
func (f *Folder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.root.Close()
	for _, o := range f.open {
		err = errors.Join(err, o.Close())
	}
	f.open = nil
	return err
}

// maxNames bounds the names of a folder that are looked at.
const maxNames = 1 << 17

// Names lists what lies in the folder itself.
func (f *Folder) Names() ([]string, error) {
	d, err := f.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxNames)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if len(names) == maxNames {
		return nil, fmt.Errorf("%s has %d files or more: no checkpoint has", f.dir, maxNames)
	}
	slices.Sort(names)
	return names, err
}

// Has tells whether the folder has something of a name.
func (f *Folder) Has(name string) bool {
	_, err := f.root.Lstat(name)
	return err == nil
}

// Open opens a file, or finds it open. It stays the folder's, and open until so many others were opened.
func (f *Folder) Open(name string) (*File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.foundLocked(name); o != nil {
		return o, nil
	}
	if !filepath.IsLocal(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, fmt.Errorf("%s: the file name %.128q leads out of the folder, or has control characters", f.dir, name)
	}
	o, err := f.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would be waited for
	if err != nil {
		return nil, fmt.Errorf("%s: %w%s", f.dir, err, escaped(err))
	}
	info, err := o.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file (%v)", filepath.Join(f.dir, name), info.Mode().Type())
	}
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	if len(f.open) >= maxOpen {
		if err := f.open[0].Close(); err != nil {
			return nil, errors.Join(err, o.Close())
		}
		f.open = slices.Delete(f.open, 0, 1)
	}
	file := &File{o, name, info.Size()}
	f.open = append(f.open, file)
	return file, nil
}

func (f *Folder) foundLocked(name string) *File {
	if i := slices.IndexFunc(f.open, func(o *File) bool { return o.Name == name }); i >= 0 {
		return f.open[i]
	}
	return nil
}

// escaped is what to do about a link out of the folder.
func escaped(err error) string {
	if strings.Contains(err.Error(), "escapes") {
		return ": a link leads out of the folder; copy the folder with its files (cp -rL) and import the copy"
	}
	return ""
}

// ReadAt fills p from a file.
func (f *Folder) ReadAt(name string, p []byte, off int64) error {
	for {
		f.mu.RLock()
		o := f.foundLocked(name)
		if o == nil {
			f.mu.RUnlock()
			if _, err := f.Open(name); err != nil {
				return err
			}
			continue
		}
		n, err := o.File.ReadAt(p, off)
		f.mu.RUnlock()
		if n < len(p) {
			return fmt.Errorf("%s: %d bytes at %d: %w", filepath.Join(f.dir, name), len(p), off, ended(err))
		}
		return nil
	}
}

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the file ends before: it is cut")
	}
	return err
}

// Small reads a whole file of so many bytes at most.
func (f *Folder) Small(name string, most int64) ([]byte, error) {
	o, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	if o.Size > most {
		return nil, fmt.Errorf("%s has %d bytes, at most %d", filepath.Join(f.dir, name), o.Size, most)
	}
	b := make([]byte, o.Size)
	return b, f.ReadAt(name, b, 0)
}

// WriteFile makes a file that was not there, and sees that the disk has it.
func WriteFile(dir, name string, fill func(io.Writer) error) (err error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := fill(&hurried{f: f}); err != nil {
		return err
	}
	return f.Sync()
}

// hurried has the kernel begin to write what it was given. At the end of a large file the disk would have all of it before it, and nothing until then.
type hurried struct {
	f         *os.File
	at, begun int64
}

// hurry is how many bytes the kernel keeps at most before it begins.
const hurry = 64 << 20

func (h *hurried) Write(b []byte) (int, error) {
	n, err := h.f.Write(b)
	if h.at += int64(n); h.at-h.begun >= hurry {
		_ = unix.SyncFileRange(int(h.f.Fd()), h.begun, h.at-h.begun, unix.SYNC_FILE_RANGE_WRITE) // Sync says what fails
		h.begun = h.at
	}
	return n, err
}
