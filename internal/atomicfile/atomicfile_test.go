package atomicfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// A file that is replaced is the old or the new one at every moment, and a failure leaves the old and no litter.
func TestFilesAreReplacedWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "list")
	a, b := bytes.Repeat([]byte("a"), 1<<20), bytes.Repeat([]byte("b"), 1<<19)
	if err := Write(path, a); err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	torn, reads := make(chan int, 1), make(chan int, 1)
	go func() {
		n := 0
		for ; !over.Load(); n++ {
			got, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got, a) && !bytes.Equal(got, b) {
				torn <- len(got)
				break
			}
			if n == 0 {
				reads <- 1
			}
		}
		close(torn)
	}()
	<-reads
	for i := range 20 {
		if err := Write(path, [][]byte{a, b}[i%2]); err != nil {
			t.Error(err)
		}
	}
	over.Store(true)
	if n, ok := <-torn; ok {
		t.Errorf("a reader finds %d bytes, which is neither the old nor the new file", n)
	}

	taken := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "by a directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(taken, a); err == nil {
		t.Error("a directory is replaced by a file")
	}
	if err := Write(filepath.Join(dir, "nowhere", "list"), a); err == nil {
		t.Error("a file is written where there is no directory")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A file counts as written once its directory is on disk too: one that can't be opened for that, though files can be put there, is
// an error.
func TestDirectoryIsSynced(t *testing.T) {
	dir, err := os.MkdirTemp("", "rn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(os.Chmod(dir, 0o700), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	if os.Geteuid() == 0 { // whom no mode stops: another user's files are then this thread's limit
		const nobody = 65534
		runtime.LockOSThread() // and never unlocked: the thread ends with the test
		if err := errors.Join(os.Chown(dir, nobody, nobody), unix.Setfsuid(nobody)); err != nil {
			t.Fatal(err)
		}
	}
	for mode, want := range map[os.FileMode]bool{0o700: true, 0o300: false} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := Write(filepath.Join(dir, "list"), []byte("new")); (err == nil) != want {
			t.Errorf("mode %v: written: %v", mode, err)
		}
	}
}
