package kept

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// Collect reads what paths name into a tar. A file is called by its own name, and what a folder holds by the folder's name and its own; with a slash
// behind the folder by its own alone. Links to files are read through.
func Collect(paths []string) ([]byte, error) {
	c := collection{names: newNames(), from: map[string]string{}}
	for _, p := range paths {
		if err := c.add(p); err != nil {
			return nil, err
		}
	}
	files := make([]Source, len(c.found))
	for i, f := range c.found {
		b, err := read(f.path, f.size)
		if err != nil {
			return nil, err
		}
		files[i] = Source{f.name, b}
	}
	return Pack(files)
}

// collection is what was found, before any of it is read.
type collection struct {
	names names
	from  map[string]string // by name
	found []found
	seen  int // files, of which some may be named twice
	bytes int64
}

type found struct {
	path, name string
	size       int64
}

func (c *collection) add(p string) error {
	info, err := os.Stat(p)
	if err != nil {
		return fmt.Errorf("%s: %w", p, plainly(err))
	}
	base := filepath.Base(p)
	contents := strings.HasSuffix(p, "/") || base == "." || base == ".."
	if !info.IsDir() {
		return c.file(p, base, info)
	}
	if contents {
		base = ""
	}
	was := c.seen
	if err := c.folder(p, base); err != nil {
		return err
	}
	if c.seen == was {
		return fmt.Errorf("no file is in %s", p)
	}
	return nil
}

// folder takes what lies in a folder, under a name.
func (c *collection) folder(dir, name string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, plainly(err))
	}
	for _, e := range entries {
		at, called := filepath.Join(dir, e.Name()), path.Join(name, e.Name())
		if e.IsDir() {
			if err := c.folder(at, called); err != nil {
				return err
			}
			continue
		}
		info, err := os.Stat(at)
		if err != nil {
			return fmt.Errorf("%s: %w", at, plainly(err))
		}
		if info.IsDir() {
			return fmt.Errorf("%s is a link to a folder, which may lead anywhere: name that folder itself", at)
		}
		if err := c.file(at, called, info); err != nil {
			return err
		}
	}
	return nil
}

func (c *collection) file(p, name string, info os.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file that can be kept (%v): want regular files, and links to such", p, info.Mode().Type())
	}
	p = filepath.Clean(p)
	c.seen++
	if other, ok := c.from[name]; ok && other == p {
		return nil // it is named twice
	} else if ok {
		return fmt.Errorf("%s and %s would both be called %q: rename one, or name its folder without the slash behind it", other, p, name)
	}
	if err := c.names.add(name); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	if c.bytes += info.Size(); c.bytes > MaxBytes {
		return fmt.Errorf("with %s of %d bytes they are %w", p, info.Size(), errTooLarge)
	}
	c.from[name] = p
	c.found = append(c.found, found{p, name, info.Size()})
	return nil
}

// read reads a file of a size. A pipe that has taken its place is not waited for.
func read(p string, size int64) ([]byte, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, plainly(err))
	}
	defer f.Close()
	b := make([]byte, size)
	_, err = io.ReadFull(f, b)
	if n, _ := f.Read(make([]byte, 1)); err != nil || n > 0 {
		return nil, fmt.Errorf("%s has changed while it was read: %w", p, cmp.Or(err, errGrew))
	}
	return b, nil
}

var errGrew = errors.New("it is longer now")

// plainly leaves out the path, which the caller names.
func plainly(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}
