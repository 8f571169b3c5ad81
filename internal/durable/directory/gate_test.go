package directory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/durable/store"
)

func (g *gate) stand() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.abandoned
}

// A mount whose server is gone lets no call return, for ever. Each caller is told, most of them at once, and the same store works again
// when the server does.
func TestSilentFileSystem(t *testing.T) {
	dir := t.TempDir()
	bubble.Test(t, func(t *testing.T) {
		f := newFaults()
		s := opened(t, dir, f)
		if _, err := s.PutNew(t.Context(), "a", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if text := s.Silent(); text != "" {
			t.Errorf("it answers, and is said to be silent: %s", text)
		}
		f.frozen = make(chan struct{})
		began := time.Now()
		for range 100 {
			_, _, err := s.Get(t.Context(), "a", 10)
			if !errors.Is(err, ErrSilent) || !errors.Is(err, store.ErrDoubtful) || !strings.Contains(err.Error(), dir) {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != lookPatience {
			t.Errorf("100 reads were told so after %v, and the first should have waited alone, for %v", took, lookPatience)
		}
		if text := s.Silent(); !strings.Contains(text, "looking at a") || !strings.Contains(text, dir) {
			t.Errorf("of its silence is said %q", text)
		}
		close(f.frozen)
		f.mu.Lock()
		f.frozen = nil
		f.mu.Unlock()
		synctest.Wait()
		if text := s.Silent(); text != "" || s.gate.stand() != 0 {
			t.Errorf("it answers again, and is said to be silent (%d calls): %s", s.gate.stand(), text)
		}
		if _, _, err := s.Get(t.Context(), "a", 10); err != nil {
			t.Error(err)
		}
	})
}

// A caller that gives up waits no longer, and says nothing of the file system: a slow one is not a silent one.
func TestCallersThatGiveUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := &gate{dir: "/mnt/durable", closing: make(chan struct{})}
		gone := make(chan struct{})
		call := func() (struct{}, error) { <-gone; return struct{}{}, nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		for i := range 10 {
			_, err := through(ctx, g, workPatience, "syncing x", call)
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errAbandoned) != (i == 0) {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != time.Second+stopPatience {
			t.Errorf("it took %v", took)
		}
		if err := g.complaint(time.Now()); err != nil || g.stand() != 1 {
			t.Errorf("%v, %d calls stand", err, g.stand())
		}
		close(gone)
		synctest.Wait()
		if g.stand() != 0 {
			t.Errorf("%d calls stand", g.stand())
		}
	})
}

type closer struct {
	mu    sync.Mutex
	times int
}

func (c *closer) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times++
	return nil
}

// What a call opened after nobody waited for it is closed, and no more calls stand than the cap allows.
func TestLateCalls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := &gate{dir: "/mnt/durable", closing: make(chan struct{})}
		gone, closed := make(chan struct{}), new(closer)
		for n := 0; g.stand() < maxAbandoned; n++ {
			_, err := through(t.Context(), g, lookPatience, "opening x", func() (*closer, error) { <-gone; return closed, nil })
			if !errors.Is(err, ErrSilent) {
				t.Fatal(err)
			}
			if n > 2*maxAbandoned {
				t.Fatalf("%d calls stand after %d were tried", g.stand(), n)
			}
			time.Sleep(silentAgain)
		}
		if _, err := through(t.Context(), g, lookPatience, "x", func() (struct{}, error) { return struct{}{}, nil }); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "64 calls") {
			t.Errorf("one more than the cap: %v", err)
		}
		close(gone)
		synctest.Wait()
		if closed.times != maxAbandoned || g.stand() != 0 {
			t.Errorf("%d of %d late ones were closed, %d stand", closed.times, maxAbandoned, g.stand())
		}
	})
}

// A part whose write was given up may still be written, after its caller has used the buffer again: the upload must not go on.
func TestPartThatWasGivenUp(t *testing.T) {
	u := &upload{store: opened(t, t.TempDir(), newFaults()), size: 1, part: partBytes, here: make([]bool, 1), key: "k"}
	u.tree = u.store.tree
	u.torn = errors.Join(store.ErrDoubtful, errAbandoned)
	if err := u.Part(t.Context(), 0, []byte("x")); !errors.Is(err, store.ErrDoubtful) {
		t.Errorf("a part after one that was given up: %v", err)
	}
	u.here[0] = true
	if _, err := u.Complete(t.Context(), [32]byte{}); !errors.Is(err, store.ErrDoubtful) {
		t.Errorf("its end: %v", err)
	}
}

// A directory that was moved away is written no more through its descriptor, and an unmounted one is not taken for empty.
func TestMovedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "durable")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(dir, 0o700))
	s := opened(t, dir, newFaults())
	_, err := s.PutNew(t.Context(), "a", []byte("x"))
	must(err)
	must(os.Rename(dir, dir+".old"))
	for what, err := range map[string]error{"list": s.List(t.Context(), "", "", func(store.Info) error { return nil }), "delete": s.Delete(t.Context(), "a"), "get": func() error { _, _, err := s.Get(t.Context(), "a", 10); return err }()} {
		if !errors.Is(err, ErrMoved) || !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrAbsent) {
			t.Errorf("%s of a directory that is away: %v", what, err)
		}
	}
	must(os.Mkdir(dir, 0o700))
	if _, err := s.PutNew(t.Context(), "b", []byte("x")); !errors.Is(err, ErrMoved) || !strings.Contains(err.Error(), "inode") {
		t.Errorf("the first write to another directory: %v", err)
	}
	_, err = s.PutNew(t.Context(), "b", []byte("x"))
	must(err)
	if _, err := os.Stat(dir + "/b"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + ".old/b"); err == nil {
		t.Error("the former directory was written")
	}
	if !bare(1, 2, 2, true) || bare(1, 2, 2, false) || bare(1, 1, 1, true) || bare(1, 2, 3, true) {
		t.Error("what an unmount leaves: empty, another device, and that of the directory above")
	}
}

// A directory that moves while a file gets its name: the name is there, and nobody will find it.
func TestMovedDuringAPut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "durable")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := open(t.Context(), dir, func(d disk) disk { return moving{d, dir} })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.PutNew(t.Context(), "a", []byte("x")); !errors.Is(err, ErrMoved) {
		t.Errorf("a put into a directory that went away: %v", err)
	}
}

type moving struct {
	disk
	dir string
}

func (m moving) link(from, to string) error {
	return errors.Join(m.disk.link(from, to), os.Rename(m.dir, m.dir+".old"), os.Mkdir(m.dir, 0o700))
}
