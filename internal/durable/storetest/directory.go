package storetest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
)

// DirectoryBed is a bed in a directory, and where that is.
type DirectoryBed struct {
	Bed
	Dir string
}

// memory is where a test's directories are, so that its racers do not wait for a disk's fsync. It is a whole file system all the same.
const memory = "/dev/shm"

// Scratch makes a directory for one test, in memory where there is a file system for it.
func Scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(memory, "replicad-storetest-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Directory makes a bed in a directory of its own. open is the store's constructor.
func Directory(t testing.TB, open func(t testing.TB, dir string) store.Store) DirectoryBed {
	t.Helper()
	above := Scratch(t)
	b := DirectoryBed{Dir: filepath.Join(above, "lm")}
	if err := os.Mkdir(b.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b.Bed = Bed{
		Open: func(t testing.TB) store.Store { return open(t, b.Dir) },
		Raw: func(t testing.TB, key string, text []byte) {
			write(t, filepath.Join(b.Dir, key), text)
		},
		Outside: func(t testing.TB) func() map[string]string {
			write(t, b.Dir+"2/k", []byte("beside"))
			write(t, above+"/x", []byte("above"))
			return func() map[string]string { return tree(t, above, b.Dir) }
		},
		Plant: func(t testing.TB, kind, key string) { plant(t, above, kind, filepath.Join(b.Dir, key)) },
	}
	return b
}

func write(t testing.TB, name string, text []byte) {
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	if err == nil {
		err = os.WriteFile(name, text, 0o600)
	}
	if err != nil {
		t.Errorf("write %s: %v", name, err)
	}
}

// tree reads all files below a directory but those below another.
func tree(t testing.TB, top, but string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && name == but {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			b, err := os.ReadFile(name)
			found[strings.TrimPrefix(name, top)] = string(b)
			return err
		}
		found[strings.TrimPrefix(name, top)] = d.Type().String()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func plant(t testing.TB, above, kind, name string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	switch {
	case err != nil:
	case kind == "symlink":
		write(t, above+"/away/file", []byte("outside"))
		err = os.Symlink(above+"/away/file", name)
	case kind == "symlinked directory":
		write(t, above+"/away/file", []byte("outside"))
		err = os.Symlink(above+"/away", name)
	case kind == "fifo":
		err = syscall.Mkfifo(name, 0o600)
	case kind == "directory":
		err = os.Mkdir(name, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
}
