package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

var errCrash = errors.New("power is gone")

// crashDisk does steps until it has none left; then every step fails, and the one it dies in is half done. What a power
// cut could still take back is known from what was not synced.
type crashDisk struct {
	disk
	left     int
	fail     error           // what a failed step says
	unsynced map[string]bool // files with bytes that were not synced
	entries  map[string]bool // names whose directory was not synced since they appeared
}

func newCrashDisk(d disk, steps int, fail error) *crashDisk {
	return &crashDisk{disk: d, left: steps, fail: fail, unsynced: make(map[string]bool), entries: make(map[string]bool)}
}

func (c *crashDisk) step() error {
	c.left--
	if c.left < 0 {
		return c.fail
	}
	return nil
}

func (c *crashDisk) mkdir(name string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.disk.mkdir(name)
}

func (c *crashDisk) create(name string) (file, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	f, err := c.disk.create(name)
	if err != nil {
		return nil, err
	}
	c.unsynced[name], c.entries[name] = true, true
	return &crashFile{f, name, c}, nil
}

func (c *crashDisk) rename(from, to string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.moved(from, to, c.disk.rename(from, to))
}

func (c *crashDisk) link(from, to string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.moved(from, to, c.disk.link(from, to))
}

func (c *crashDisk) moved(from, to string, err error) error {
	if err == nil {
		c.unsynced[to], c.entries[to] = c.unsynced[from], true
	}
	return err
}

func (c *crashDisk) remove(name string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.disk.remove(name)
}

func (c *crashDisk) syncDir(name string) error {
	if err := c.step(); err != nil {
		return err
	}
	for e := range c.entries {
		if path.Dir(e) == name {
			delete(c.entries, e)
		}
	}
	return nil // the real one would only make the test slow
}

type crashFile struct {
	file
	name string
	c    *crashDisk
}

func (f *crashFile) Write(b []byte) (int, error) {
	if err := f.c.step(); err != nil {
		n, _ := f.file.Write(b[:len(b)/2])
		return n, err
	}
	f.c.unsynced[f.name] = true
	return f.file.Write(b)
}

func (f *crashFile) Sync() error {
	if err := f.c.step(); err != nil {
		return err
	}
	delete(f.c.unsynced, f.name)
	return nil
}

// powerCut takes from the disk what was not synced: bytes, or whole names.
func (c *crashDisk) powerCut(t *testing.T, root *os.Root) {
	t.Helper()
	for name := range c.unsynced {
		if !c.unsynced[name] {
			continue
		}
		if f, err := root.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
			f.Close()
		}
	}
	for name := range c.entries {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

// openUnsynced opens a store whose disk has all the steps it wants and syncs nothing, without the probe that Open makes.
func openUnsynced(t *testing.T, dir string) *Store {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	info, err := root.Stat(".")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{dir: dir, ctx: t.Context()}
	return &Store{dir: dir, gate: g, tree: &tree{dir: dir, gate: g, root: root, disk: newCrashDisk(rooted{root}, 1<<30, nil), info: info}, reading: make(map[string]int), frozen: make(map[string]bool)}
}

// TestCrashAtEveryStep lets the writer of a second generation die at each step, with and without what a power cut takes.
// What is found afterwards is whole, the first generation is always found, and a writer that starts again finishes.
func TestCrashAtEveryStep(t *testing.T) {
	g := testRegions(t)
	first, second := replica.Generation{Epoch: 1, Step: 2}, replica.Generation{Epoch: 1, Step: 4}
	for _, cut := range []bool{false, true} {
		finished := false
		for steps := 0; !finished; steps++ {
			if steps > 500 {
				t.Fatal("the writer never finishes")
			}
			s := openUnsynced(t, t.TempDir())
			if err := writeGeneration(t.Context(), s, g, first); err != nil {
				t.Fatal(err)
			}
			crash := newCrashDisk(rooted{s.tree.root}, steps, errCrash)
			s.tree.disk = crash
			err := writeGeneration(t.Context(), s, g, second)
			finished = err == nil
			if err != nil && !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			if cut {
				crash.powerCut(t, s.tree.root)
			}
			again := openUnsynced(t, s.dir)
			found, _ := find(t, again, job)
			if finished && len(found) != 2 {
				t.Fatalf("step %d: the writer said that it finished, and %d are found", steps, len(found))
			}
			if len(found) == 0 || found[len(found)-1].Generation != first {
				t.Fatalf("step %d: the first generation is gone: %v", steps, found)
			}
			for _, f := range found {
				checkWhole(t, again, g, f)
			}
			if err := writeGeneration(t.Context(), again, g, second); err != nil {
				t.Fatalf("step %d: writing again: %v", steps, err)
			}
			if found, _ = find(t, again, job); len(found) != 2 {
				t.Fatalf("step %d: %d are found after writing again", steps, len(found))
			}
			checkWhole(t, again, g, found[0])
		}
	}
}

// TestCrashWhileRemoving dies at each step of a removal: what is found is whole.
func TestCrashWhileRemoving(t *testing.T) {
	g := testRegions(t)
	for steps, finished := 0, false; !finished; steps += racing.Stride {
		if steps > 500 {
			t.Fatal("it never finishes")
		}
		s := openUnsynced(t, t.TempDir())
		for step := range replica.Step(3) {
			if err := writeGeneration(t.Context(), s, g, replica.Generation{Epoch: 1, Step: step + 1}); err != nil {
				t.Fatal(err)
			}
		}
		s.tree.disk = newCrashDisk(rooted{s.tree.root}, steps, errCrash)
		finished = removesOld(s) == nil
		again := openUnsynced(t, s.dir)
		found, _ := find(t, again, job)
		if len(found) == 0 || found[0].Generation.Step != 3 {
			t.Fatalf("step %d: found %v", steps, found)
		}
		for _, f := range found {
			checkWhole(t, again, g, f)
		}
		if err := removesOld(again); err != nil {
			t.Fatal(err)
		}
		if found, skipped := find(t, again, job); len(found) != 1 || len(skipped) != 0 {
			t.Fatalf("step %d: after removing again: %v, %v", steps, found, skipped)
		}
	}
}

// removesOld removes the first two of three generations.
func removesOld(s *Store) error {
	for step := range replica.Step(2) {
		if err := s.Remove(jobName, job, replica.Generation{Epoch: 1, Step: step + 1}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func temps(t *testing.T, dir string) (left []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(p), tempPrefix) {
			left = append(left, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// TestDiskFull runs out of space at each step: the error names the remedy, nothing temporary is left, and the generation
// before is found.
func TestDiskFull(t *testing.T) {
	g := testRegions(t)
	for steps, finished := 0, false; !finished; steps += racing.Stride {
		s := openUnsynced(t, t.TempDir())
		if err := writeGeneration(t.Context(), s, g, replica.Generation{Epoch: 1, Step: 2}); err != nil {
			t.Fatal(err)
		}
		full := &fullDisk{newCrashDisk(rooted{s.tree.root}, steps, syscall.ENOSPC)}
		s.tree.disk = full
		err := writeGeneration(t.Context(), s, g, replica.Generation{Epoch: 1, Step: 4})
		if finished = err == nil; finished {
			break
		}
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free space in "+s.dir) {
			t.Fatalf("step %d: %v", steps, err)
		}
		if left := temps(t, s.dir); len(left) != 0 {
			t.Errorf("step %d: left over: %v", steps, left)
		}
		if found, _ := find(t, s, job); len(found) == 0 {
			t.Errorf("step %d: nothing is found", steps)
		}
	}
}

// fullDisk still removes when it is full.
type fullDisk struct{ *crashDisk }

func (f *fullDisk) remove(name string) error { return f.disk.remove(name) }

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{missing, plain, pipe} {
		if _, err := Open(t.Context(), bad); err == nil || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), "durable_dir") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	readOnly := &tree{dir: dir}
	if err := readOnly.explain(&fs.PathError{Op: "open", Path: "x", Err: syscall.EROFS}); !strings.Contains(err.Error(), "writable") {
		t.Error(err)
	}
	if os.Geteuid() != 0 { // root may write anywhere
		closed := filepath.Join(dir, "closed")
		if err := os.Mkdir(closed, 0o500); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), closed); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "writable") {
			t.Errorf("not writable: %v", err)
		}
	}
}

// TestNothingLeadsOutside plants a symbolic link where a job's directory would be.
func TestNothingLeadsOutside(t *testing.T) {
	outside, dir, g := t.TempDir(), t.TempDir(), testRegions(t)
	if err := os.Symlink(outside, filepath.Join(dir, jobName)); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if err := writeGeneration(context.Background(), s, g, replica.Generation{Epoch: 1, Step: 2}); err == nil {
		t.Error("written through a link that leads outside")
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("outside: %v, %v", entries, err)
	}
	for _, name := range []string{"", "..", ".", "a/b", "/etc", "a\x00b", "A b", "ä", strings.Repeat("a", 64), "a/"} {
		if _, _, err := s.Find(name, job); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
}
