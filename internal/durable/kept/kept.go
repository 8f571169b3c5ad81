// Package kept is files that a run carries beside its state (a tokenizer, a configuration): which they may be, the one tar that they are, and the sealed
// memory that brings it from a launcher to its daemon.
//
// A tar holds regular files alone, by name, and no time, owner or mode of theirs: equal files make equal bytes. Before them lies a list of their digests,
// as sha256sum writes it: what rotted is found without a commit that names the tar. Nothing is unpacked here. The package imports nothing of this project.
package kept

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode"
)

// Limits. A tar is put in a store by one request, under a condition.
const (
	MaxBytes = 64 << 20 // of the tar
	MaxFiles = 1000
	MaxName  = 255 // bytes of a file's name, folders in it
)

// Sums is the name of the list of digests in a tar.
const Sums = ".sha256sums"

// ErrCorrupt marks bytes that are no tar of kept files.
var ErrCorrupt = errors.New("no tar of kept files")

// File is one of them.
type File struct {
	Name  string `json:"name"` // with slashes
	Bytes int64  `json:"bytes"`
}

// Source is a file with its content.
type Source struct {
	Name string
	Data []byte
}

// CheckName tells whether a file may be kept under a name.
func CheckName(name string) error {
	switch {
	case len(name) > MaxName:
		return fmt.Errorf("the name %.64q... has %d bytes: at most %d", name, len(name), MaxName)
	case name == "." || !fs.ValidPath(name):
		return fmt.Errorf("the name %q: want a relative path of UTF-8 without .. in it", name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the name %q has control characters", name)
	case name == Sums || strings.HasPrefix(name, Sums+"/"):
		return fmt.Errorf("the name %q is that of the list of digests beside the files", name)
	}
	return nil
}

// names are those of one tar, of which no two may be put into one folder.
type names struct{ files, folders map[string]bool }

func newNames() names { return names{map[string]bool{}, map[string]bool{}} }

// add takes a name that none of the others is, or is the folder of.
func (n names) add(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if len(n.files) == MaxFiles {
		return fmt.Errorf("more than %d files", MaxFiles)
	}
	if n.files[name] {
		return fmt.Errorf("two files have the name %q", name)
	}
	if n.folders[name] {
		return fmt.Errorf("%q is the name of a file and of a folder", name)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if n.files[dir] {
			return fmt.Errorf("%q is the name of a file and of a folder", dir)
		}
		n.folders[dir] = true
	}
	n.files[name] = true
	return nil
}

// Pack makes the tar. The order of files does not count.
func Pack(files []Source) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	all, sums := newNames(), ""
	for _, f := range files {
		if err := all.add(f.Name); err != nil {
			return nil, err
		}
		sums += sumLine(sha256.Sum256(f.Data), f.Name)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range append([]Source{{Sums, []byte(sums)}}, files...) {
		if out.Len()+len(f.Data) > MaxBytes {
			return nil, errTooLarge
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Size: int64(len(f.Data)), Mode: 0o644}); err != nil {
			return nil, fmt.Errorf("%q: %w", f.Name, err)
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, fmt.Errorf("%q: %w", f.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if out.Len() > MaxBytes {
		return nil, errTooLarge
	}
	return out.Bytes(), nil
}

var errTooLarge = fmt.Errorf("more than %d MiB in all: keep what is large (weights, data) elsewhere", MaxBytes>>20)

func sumLine(sum [sha256.Size]byte, name string) string { return fmt.Sprintf("%x  %s\n", sum, name) }

// maxSums bounds the list of digests, in bytes.
const maxSums = MaxFiles * (2*sha256.Size + MaxName + 3)

// Read reads a tar strictly: each is given every file, in the order of names, and may leave its content unread. An error that it gives ends the read. Only
// an end without an error says that the content was that of the list of digests.
func Read(r io.Reader, each func(f File, content io.Reader) error) error {
	limited := &io.LimitedReader{R: r, N: MaxBytes + 1}
	t, all, last := tar.NewReader(limited), newNames(), ""
	sums, err := readSums(t)
	if err != nil {
		return err
	}
	for {
		h, err := next(t)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := all.add(h.Name); err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if h.Name <= last {
			return fmt.Errorf("%w: %q comes behind %q", ErrCorrupt, h.Name, last)
		}
		last = h.Name
		sum := sha256.New()
		content := io.TeeReader(io.LimitReader(t, h.Size), sum)
		if err := each(File{h.Name, h.Size}, content); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, content); err != nil {
			return fmt.Errorf("%w: %q: %w", ErrCorrupt, h.Name, err)
		}
		rest, ok := strings.CutPrefix(sums, sumLine([sha256.Size]byte(sum.Sum(nil)), h.Name))
		if sums = rest; !ok {
			return fmt.Errorf("%w: %q is not what the list of digests says", ErrCorrupt, h.Name)
		}
	}
	if n, _ := io.Copy(io.Discard, limited); n > 0 || limited.N == 0 {
		return fmt.Errorf("%w: bytes behind its end, or more than %d", ErrCorrupt, MaxBytes)
	}
	if len(all.files) == 0 || sums != "" {
		return fmt.Errorf("%w: it has %d files, and its list of digests has others", ErrCorrupt, len(all.files))
	}
	return nil
}

// next is the header of the next file.
func next(t *tar.Reader) (*tar.Header, error) {
	h, err := t.Next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	case h.Typeflag != tar.TypeReg || !plain(h.PAXRecords) || h.Size < 0 || h.Size > MaxBytes:
		return nil, fmt.Errorf("%w: %q is of type %q and %d bytes: want regular files of at most %d", ErrCorrupt, h.Name, h.Typeflag, h.Size, MaxBytes)
	}
	return h, nil
}

// readSums reads the list of digests, which comes first.
func readSums(t *tar.Reader) (string, error) {
	h, err := next(t)
	if errors.Is(err, io.EOF) {
		return "", fmt.Errorf("%w: nothing is in it", ErrCorrupt)
	}
	if err != nil {
		return "", err
	}
	if h.Name != Sums || h.Size > maxSums {
		return "", fmt.Errorf("%w: it begins with %q of %d bytes: want %s", ErrCorrupt, h.Name, h.Size, Sums)
	}
	b, err := io.ReadAll(t)
	if err != nil {
		return "", fmt.Errorf("%w: %q: %w", ErrCorrupt, h.Name, err)
	}
	return string(b), nil
}

// plain tells whether a header's extension is that of a long name alone: others describe files whose bytes are not all there.
func plain(records map[string]string) bool {
	_, long := records["path"]
	return len(records) == 0 || len(records) == 1 && long
}

// List reads a tar whole, and lists what it holds.
func List(r io.Reader) (files []File, err error) {
	err = Read(r, func(f File, _ io.Reader) error {
		files = append(files, f)
		return nil
	})
	return files, err
}
