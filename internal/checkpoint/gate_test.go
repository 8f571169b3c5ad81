package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// A named pipe in the durable directory used to hang whoever opened it, the daemon's end included.
func TestNamedPipes(t *testing.T) {
	g, gen := testRegions(t), replica.Generation{Epoch: 1, Step: 2}
	for _, name := range []string{markerName, "group-0.manifest", "group-0.safetensors"} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			if err := writeGeneration(t.Context(), s, g, gen); err != nil {
				t.Fatal(err)
			}
			whole, _ := find(t, s, job)
			pipe := filepath.Join(s.dir, whole[0].Path, name)
			if err := os.Remove(pipe); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			found, skipped := find(t, s, job)
			if len(found) != 0 || len(skipped) != 1 || skipped[0].Why != Damaged {
				t.Fatalf("found %v, skipped %v", found, skipped)
			}
			if name != "group-0.safetensors" { // whose length says it
				if want := name + " is a named pipe, want a regular file"; !strings.Contains(skipped[0].Reason, want) {
					t.Errorf("%q does not say %q", skipped[0].Reason, want)
				}
			}
			if err := s.Verify(t.Context(), whole[0]); name != markerName && !strings.Contains(err.Error(), "a named pipe") {
				t.Errorf("verified with %v", err)
			}
			_ = s.Holds(jobName, job, gen)
			if err := s.Remove(jobName, job, gen); err != nil {
				t.Error(err)
			}
		})
	}
	s := open(t, t.TempDir())
	if err := syscall.Mkfifo(filepath.Join(s.dir, jobName), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Find(jobName, job); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a pipe where the job's directory would be: %v", err)
	}
}

// mute is a disk that can stop answering: its calls stand until it does again.
type mute struct {
	disk
	mu    sync.Mutex
	gone  chan struct{} // nil: it answers
	calls int           // that stood, or stand
}

func (m *mute) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = make(chan struct{})
}

func (m *mute) answer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.gone)
	m.gone = nil
}

func (m *mute) stood() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// stand is how many calls were given up and have not returned.
func (g *Gate) stand() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.abandoned
}

func (m *mute) mkdir(name string) error {
	m.mu.Lock()
	gone := m.gone
	if gone != nil {
		m.calls++
	}
	m.mu.Unlock()
	if gone != nil {
		<-gone
	}
	return m.disk.mkdir(name)
}

// A mount whose server is gone lets no call return, for ever. Whoever asked is told, most of them at once, and the same store works
// again when the server does.
func TestSilentFileSystem(t *testing.T) {
	g := testRegions(t)
	dir := t.TempDir()
	bubble.Test(t, func(t *testing.T) {
		s := open(t, dir)
		m := &mute{disk: rooted{s.tree.root}}
		s.tree.disk = gated{m, s.gate}
		if err := writeGeneration(t.Context(), s, g, replica.Generation{Epoch: 1, Step: 1}); err != nil {
			t.Fatal(err)
		}
		if text := s.Silent(); text != "" {
			t.Errorf("it answers, and is said to be silent: %s", text)
		}
		m.stop()
		began := time.Now()
		for step := range replica.Step(100) {
			err := writeGeneration(t.Context(), s, g, replica.Generation{Epoch: 1, Step: 2 + step})
			if !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "making "+jobName) {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != workPatience {
			t.Errorf("100 writes were told so after %v, and the first should have waited alone, for %v", took, workPatience)
		}
		if text := s.Silent(); !strings.Contains(text, "making "+jobName) || !strings.Contains(text, dir) {
			t.Errorf("of its silence is said %q", text)
		}
		if _, _, err := s.Find(jobName, job); !errors.Is(err, ErrSilent) {
			t.Errorf("the list of what is there: %v", err)
		}
		for range 3 { // now and then a call finds out
			time.Sleep(silentAgain)
			_, err := s.toWrite()
			if err != nil { // looking answers here: it is the making alone that does not
				t.Fatal(err)
			}
			if err := s.tree.disk.mkdir("x"); !errors.Is(err, ErrSilent) {
				t.Fatal(err)
			}
		}
		if m.stood() != 4 || s.gate.stand() != 4 {
			t.Errorf("%d calls stand, %d of them known, want 4", m.stood(), s.gate.stand())
		}
		m.answer()
		synctest.Wait()
		if text := s.Silent(); text != "" || s.gate.stand() != 0 {
			t.Errorf("it answers again, and is said to be silent (%d calls): %s", s.gate.stand(), text)
		}
		if err := writeGeneration(t.Context(), s, g, replica.Generation{Epoch: 1, Step: 200}); err != nil {
			t.Error(err)
		}
	})
}

// The end of the daemon waits for no call for long.
func TestSilentFileSystemAtTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := &Gate{dir: "/mnt/durable", ctx: ctx}
		gone := make(chan struct{})
		call := func() (struct{}, error) { <-gone; return struct{}{}, nil }
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		for range 10 {
			if _, err := through(g, workPatience, "syncing x", call); !errors.Is(err, ErrSilent) {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != time.Second+stopPatience {
			t.Errorf("it took %v", took)
		}
		close(gone)
	})
}

// What a call opened after nobody waited for it is closed, and no more calls stand than the cap allows.
func TestLateCalls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := &Gate{dir: "/mnt/durable", ctx: t.Context()}
		gone, closed := make(chan struct{}), new(closer)
		for n := 0; ; n++ {
			_, err := through(g, lookPatience, "opening x", func() (*closer, error) { <-gone; return closed, nil })
			if !errors.Is(err, ErrSilent) {
				t.Fatal(err)
			}
			if g.stand() == maxAbandoned {
				break
			}
			if n > 2*maxAbandoned {
				t.Fatalf("%d calls stand after %d were tried", g.stand(), n)
			}
			if n%2 == 0 {
				time.Sleep(silentAgain)
			} else if _, err := through(g, lookPatience, "looking at x", func() (int, error) { return 0, nil }); err != nil { // what the kernel remembers is answered
				time.Sleep(silentAgain)
			}
		}
		time.Sleep(time.Hour)
		if _, err := through(g, lookPatience, "opening x", func() (int, error) { t.Error("one more call is made"); return 0, nil }); !errors.Is(err, ErrSilent) {
			t.Error(err)
		}
		close(gone)
		synctest.Wait()
		if closed.n != maxAbandoned || g.stand() != 0 {
			t.Errorf("%d of %d were closed, %d stand", closed.n, maxAbandoned, g.stand())
		}
	})
}

type closer struct {
	mu sync.Mutex
	n  int
}

func (c *closer) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return nil
}
