package directory

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

// faults is what tests put between a tree and the kernel.
type faults struct {
	mu     sync.Mutex
	lose   map[string]error // links to names that end so are made, and answered with this
	fail   map[string]error // links to names that end so are not made
	frozen chan struct{}    // closed: calls go on
}

func (f *faults) wrap(d disk) disk { return faulty{d, f} }

func (f *faults) wait() {
	f.mu.Lock()
	frozen := f.frozen
	f.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

type faulty struct {
	disk
	faults *faults
}

func take(m map[string]error, name string) (error, bool) {
	for suffix, err := range m {
		if strings.HasSuffix(name, suffix) || strings.Contains(name, versions+suffix+"/") {
			delete(m, suffix)
			return err, true
		}
	}
	return nil, false
}

func (d faulty) link(from, to string) error {
	d.faults.wait()
	d.faults.mu.Lock()
	lost, lose := take(d.faults.lose, to)
	failed, fail := take(d.faults.fail, to)
	d.faults.mu.Unlock()
	if fail {
		return failed
	}
	err := d.disk.link(from, to)
	if lose && err == nil {
		return lost
	}
	return err
}

func (d faulty) open(name string) (*os.File, error) { d.faults.wait(); return d.disk.open(name) }
func (d faulty) create(name string) (*os.File, error) {
	d.faults.wait()
	return d.disk.create(name)
}
func (d faulty) lstat(name string) (fs.FileInfo, error) { d.faults.wait(); return d.disk.lstat(name) }
func (d faulty) remove(name string) error               { d.faults.wait(); return d.disk.remove(name) }

func newFaults() *faults { return &faults{lose: map[string]error{}, fail: map[string]error{}} }

func opened(t testing.TB, dir string, f *faults) *Store {
	t.Helper()
	s, err := open(context.Background(), dir, f.wrap)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func bed(t *testing.T, lost error) storetest.Bed {
	b := storetest.Directory(t, func(t testing.TB, dir string) store.Store { t.Fatal("replaced below"); return nil })
	f := newFaults()
	b.Bed.Open = func(t testing.TB) store.Store { return opened(t, b.Dir, f) }
	b.Bed.LoseAnswer = func(t testing.TB, key string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lose[key] = lost
	}
	b.Bed.Stall = func(t testing.TB) func() {
		frozen := make(chan struct{})
		f.mu.Lock()
		f.frozen = frozen
		f.mu.Unlock()
		end := sync.OnceFunc(func() {
			f.mu.Lock()
			f.frozen = nil
			f.mu.Unlock()
			close(frozen)
		})
		t.Cleanup(end)
		return end
	}
	return b.Bed
}

// TestSuite runs the suite on a file system whose links lose their answers: NFS then says EEXIST of the link that it has made itself.
func TestSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Bed { return bed(t, syscall.EEXIST) })
}

// TestLinkThatFailed: an error of a link that was made is its success, whatever it says.
func TestLinkThatFailed(t *testing.T) {
	for _, errno := range []error{syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT} {
		s := bed(t, errno)
		one := s.Open(t)
		s.LoseAnswer(t, "k")
		if _, err := one.PutNew(t.Context(), "k", []byte("x")); err != nil {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// TestLinkThatWasNotMade: a link that fails without its name is doubtful, or refused with a remedy, and leaves nothing.
func TestLinkThatWasNotMade(t *testing.T) {
	for errno, want := range map[syscall.Errno]error{syscall.EPERM: store.ErrRefused, syscall.ENOTSUP: store.ErrRefused, syscall.EIO: store.ErrDoubtful, syscall.ESTALE: store.ErrDoubtful, syscall.ENOSPC: store.ErrRefused, syscall.EDQUOT: store.ErrRefused, syscall.EROFS: store.ErrRefused, syscall.EACCES: store.ErrRefused, syscall.EMLINK: store.ErrRefused} {
		dir := t.TempDir()
		f := newFaults()
		s := opened(t, dir, f)
		f.fail["k"] = errno
		_, err := s.PutNew(t.Context(), "d/k", []byte("x"))
		if !errors.Is(err, want) || !strings.Contains(err.Error(), "d/k") || (errno == syscall.EPERM || errno == syscall.ENOTSUP) != strings.Contains(err.Error(), "no hard links") {
			t.Errorf("%v: %v, want %v", errno, err, want)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
			t.Errorf("%v leaves %v", errno, left)
		}
	}
}
