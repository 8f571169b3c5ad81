package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/replicad/replicad/replica"
)

// replace moves the store's directory away, makes one anew in its place, and returns where the former lies.
func replace(t *testing.T, dir string) (old string) {
	t.Helper()
	old = moveAway(t, dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return old
}

func moveAway(t *testing.T, dir string) (old string) {
	t.Helper()
	old = dir + ".old"
	if err := os.Rename(dir, old); err != nil {
		t.Fatal(err)
	}
	return old
}

// markers counts the committed generations that lie in a directory.
func markers(t *testing.T, dir string) int {
	t.Helper()
	m, err := filepath.Glob(filepath.Join(dir, jobName, job.String(), "*", markerName))
	if err != nil {
		t.Fatal(err)
	}
	return len(m)
}

// A directory that was moved away used to be written on by its descriptor: what was reported as durable was not at the path.
func TestReplacedDirectoryIsNotWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "durable")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, g := open(t, dir), testRegions(t)
	before, after := replica.Generation{Epoch: 1, Step: 1}, replica.Generation{Epoch: 1, Step: 2}
	if err := writeGeneration(t.Context(), s, g, before); err != nil {
		t.Fatal(err)
	}
	if err := s.Holds(jobName, job, before); err != nil {
		t.Fatal(err)
	}
	old := replace(t, dir)
	if err := s.Holds(jobName, job, before); !errors.Is(err, ErrMoved) || !strings.Contains(err.Error(), dir) {
		t.Errorf("of a generation that went with the former directory it says %v", err)
	}
	err := writeGeneration(t.Context(), s, g, after)
	if !errors.Is(err, ErrMoved) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "inode") {
		t.Fatalf("the first write after the move ends with %v", err)
	}
	if err := writeGeneration(t.Context(), s, g, after); err != nil { // the new directory is a good one
		t.Fatal(err)
	}
	if n, m := markers(t, old), markers(t, dir); n != 1 || m != 1 {
		t.Errorf("%d generations lie in the former directory and %d in the new one, want one each", n, m)
	}
	if found, _ := find(t, s, job); len(found) != 1 || found[0].Generation != after {
		t.Errorf("found %v, want what lies at the path", found)
	}
	if err := s.Holds(jobName, job, after); err != nil {
		t.Error(err)
	}
}

// While nothing good lies at the path no write counts; when the directory is back they go on, and nothing was lost.
func TestDirectoryThatIsAwayComesBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "durable")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, g := open(t, dir), testRegions(t)
	gen := func(step replica.Step) replica.Generation { return replica.Generation{Epoch: 1, Step: step} }
	for step := range replica.Step(2) {
		if err := writeGeneration(t.Context(), s, g, gen(step+1)); err != nil {
			t.Fatal(err)
		}
	}
	old := moveAway(t, dir)
	for name, do := range map[string]func() error{
		"write":  func() error { return writeGeneration(t.Context(), s, g, gen(3)) },
		"holds":  func() error { return s.Holds(jobName, job, gen(2)) },
		"remove": func() error { return s.Remove(jobName, job, gen(1)) },
		"find":   func() error { _, _, err := s.Find(jobName, job); return err },
	} {
		if err := do(); !errors.Is(err, ErrMoved) || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "mount") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Holds(jobName, job, gen(2)); !errors.Is(err, ErrMoved) {
		t.Errorf("with a file in its place: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if n := markers(t, old); n != 2 {
		t.Errorf("%d generations lie in the directory that is away, want the two that were there", n)
	}
	if err := os.Rename(old, dir); err != nil {
		t.Fatal(err)
	}
	if err := writeGeneration(t.Context(), s, g, gen(3)); err != nil {
		t.Errorf("with the same directory back: %v", err)
	}
	if n := markers(t, dir); n != 3 {
		t.Errorf("%d generations, want 3", n)
	}
}

// The directory moves while its last file is written: the marker is there, and is not at the path.
func TestMovedWhileTheMarkerIsWritten(t *testing.T) {
	for _, moment := range []string{"shard", "marker"} {
		t.Run(moment, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "durable")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			s, g := open(t, dir), testRegions(t)
			s.tree.disk = &moving{disk: s.tree.disk, at: map[string]string{"shard": "private-1" + sideExt, "marker": markerName}[moment], move: func() { replace(t, dir) }}
			if err := writeGeneration(t.Context(), s, g, replica.Generation{Epoch: 1, Step: 1}); !errors.Is(err, ErrMoved) || !strings.HasPrefix(err.Error(), map[string]string{"shard": "write shard private 1", "marker": "commit marker"}[moment]) {
				t.Errorf("it ends with %v", err)
			}
			if n := markers(t, dir); n != 0 {
				t.Errorf("%d generations at the path", n)
			}
		})
	}
}

// moving is a disk whose directory goes away once a file of this name is in place.
type moving struct {
	disk
	at   string
	move func()
}

func (m *moving) placed(to string, err error) error {
	if filepath.Base(to) == m.at {
		m.move()
	}
	return err
}

func (m *moving) rename(from, to string) error { return m.placed(to, m.disk.rename(from, to)) }
func (m *moving) link(from, to string) error   { return m.placed(to, m.disk.link(from, to)) }

// What an unmount leaves at the path looks like a directory: writing into it would fill another disk that no other node sees.
func TestWhatAnUnmountLeavesIsNotTaken(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		former, now, parent  uint64
		empty, bareMountPoin bool
	}{
		{"made anew on the same file system", 7, 7, 7, true, false},
		{"another file system mounted in its place", 7, 8, 1, true, false},
		{"the same one mounted again", 7, 7, 1, false, false},
		{"unmounted", 7, 1, 1, true, true},
		{"a file system above it was unmounted", 7, 1, 1, true, true},
		{"a file system above it was mounted again", 7, 9, 9, false, false},
	} {
		if got := bare(tc.former, tc.now, tc.parent, tc.empty); got != tc.bareMountPoin {
			t.Errorf("%s: taken for a bare mount point: %v", tc.name, got)
		}
	}
}

// The same with real mounts: `umount -l` under an open store, and another file system in its place later.
func TestUnmountedDirectoryIsRefusedUntilMounted(t *testing.T) {
	dir := t.TempDir()
	mount := func() {
		t.Helper()
		if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4m"); err != nil {
			t.Skipf("only root may mount: %v", err)
		}
	}
	mount()
	mounted := true
	unmount := func() {
		t.Helper()
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
		mounted = false
	}
	t.Cleanup(func() {
		if mounted {
			unmount()
		}
	})
	s, g := open(t, dir), testRegions(t)
	gen := func(step replica.Step) replica.Generation { return replica.Generation{Epoch: 1, Step: step} }
	if err := writeGeneration(t.Context(), s, g, gen(1)); err != nil {
		t.Fatal(err)
	}
	unmount()
	for range 2 {
		if err := writeGeneration(t.Context(), s, g, gen(2)); !errors.Is(err, ErrMoved) || !strings.Contains(err.Error(), "mount the durable file system again") {
			t.Errorf("without its file system a write ends with %v", err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the mount point has %v, %v", entries, err)
	}
	mount()
	mounted = true
	if err := writeGeneration(t.Context(), s, g, gen(2)); !errors.Is(err, ErrMoved) {
		t.Errorf("the first write into another file system ends with %v", err)
	}
	if err := writeGeneration(t.Context(), s, g, gen(2)); err != nil {
		t.Fatal(err)
	}
	if n := markers(t, dir); n != 1 {
		t.Errorf("%d generations in the new file system, want the one that was written there", n)
	}
}
