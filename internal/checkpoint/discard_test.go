package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// unfinished writes some shards of a generation, and no marker.
func unfinished(t *testing.T, s *Store, g replica.Geometry, gen replica.Generation) {
	t.Helper()
	_, parts := testParts(g, gen)
	for _, p := range parts[1:] {
		if _, err := s.WriteShard(t.Context(), jobName, p.m, g.Regions, nil, p.read); err != nil {
			t.Fatal(err)
		}
	}
}

// directories are those of a job.
func directories(t *testing.T, s *Store) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.dir, jobName, job.String()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func discard(t *testing.T, s *Store, g replica.Generation) {
	t.Helper()
	if err := s.Discard(jobName, job, g); err != nil {
		t.Fatal(err)
	}
}

// What a failed write left goes, and nothing else: no other generation, committed or not, and none that has a marker, whatever that says.
func TestDiscard(t *testing.T) {
	s, g := open(t, t.TempDir()), testRegions(t)
	discard(t, s, gen(2)) // of a job without a directory
	for _, step := range []replica.Step{1, 3} {
		if err := writeGeneration(t.Context(), s, g, gen(step)); err != nil {
			t.Fatal(err)
		}
	}
	unfinished(t, s, g, gen(2))
	unfinished(t, s, g, gen(4))
	if err := os.WriteFile(filepath.Join(s.dir, jobName, job.String(), "1-3", markerName), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for step := range replica.Step(4) {
			discard(t, s, gen(step))
		}
	}
	if got, want := directories(t, s), []string{"1-1", "1-3", "1-4", frozenDir}; !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
	found, _ := find(t, s, job)
	checkWhole(t, s, g, found[0])
	if err := writeGeneration(t.Context(), s, g, gen(2)); err != nil {
		t.Errorf("written again: %v", err)
	}
}

// racing is a disk on which something happens right before or after a directory is moved aside.
type racing struct {
	disk
	before, after func()
}

func (r *racing) rename(from, to string) error {
	if strings.HasPrefix(filepath.Base(to), discardPrefix) && r.before != nil {
		r.before()
	}
	err := r.disk.rename(from, to)
	if strings.HasPrefix(filepath.Base(to), discardPrefix) && r.after != nil {
		r.after()
	}
	return err
}

// A marker that comes while its generation is discarded either has it stay whole, or is not written.
func TestDiscardMeetsAMarker(t *testing.T) {
	g := testRegions(t)
	for what, commits := range map[string]bool{"before": true, "after": false} {
		dir := t.TempDir()
		s, other := open(t, dir), open(t, dir)
		frozen, parts := testParts(g, gen(2))
		marker := testMarker(gen(2))
		for _, p := range parts {
			var along *Frozen
			if p.m.Part.Kind == replica.ReplicatedPart {
				along = &Frozen{frozen.m, g.Regions, frozen.read}
			}
			info, err := s.WriteShard(t.Context(), jobName, p.m, g.Regions, along, p.read)
			if err != nil {
				t.Fatal(err)
			}
			marker.Shards = append(marker.Shards, info)
		}
		r := &racing{disk: s.tree.disk}
		commit := func() {
			if err := other.WriteMarker(t.Context(), marker); (err == nil) != commits {
				t.Errorf("the marker %s it is moved aside: %v", what, err)
			}
		}
		if r.before = commit; !commits {
			r.before, r.after = nil, commit
		}
		s.tree.disk = r
		discard(t, s, gen(2))
		found, skipped := find(t, other, job)
		if len(found) != map[bool]int{true: 1}[commits] || len(skipped) != 0 || len(temps(t, dir)) != 0 {
			t.Fatalf("%s: found %v, skipped %v, left over %q", what, found, skipped, temps(t, dir))
		}
		for _, f := range found {
			checkWhole(t, other, g, f)
		}
	}
}

// Dying at any step of it loses nothing that is committed, and the next one goes on with it.
func TestCrashWhileDiscarding(t *testing.T) {
	g := testRegions(t)
	for _, late := range []bool{false, true} { // a marker comes while it is moved aside
		for steps, finished := 0, false; !finished; steps++ {
			if steps > 100 {
				t.Fatal("discarding never finishes")
			}
			s := openUnsynced(t, t.TempDir())
			for _, step := range []replica.Step{1, 2} {
				if err := writeGeneration(t.Context(), s, g, gen(step)); err != nil {
					t.Fatal(err)
				}
			}
			mark := filepath.Join(s.dir, jobName, job.String(), "1-2", markerName)
			was, err := os.ReadFile(mark)
			if err == nil {
				err = os.Remove(mark)
			}
			if err != nil {
				t.Fatal(err)
			}
			s.tree.disk = newCrashDisk(rooted{s.tree.root}, steps, errCrash)
			if late {
				s.tree.disk = &racing{disk: s.tree.disk, before: func() {
					if err := os.WriteFile(mark, was, 0o600); err != nil {
						t.Error(err)
					}
				}}
			}
			finished = s.Discard(jobName, job, gen(2)) == nil
			again := openUnsynced(t, s.dir)
			discard(t, again, gen(2))
			found, skipped := find(t, again, job)
			if want := map[bool]int{true: 2, false: 1}[late]; len(found) != want || len(skipped) != 0 || len(temps(t, s.dir)) != 0 {
				t.Fatalf("late %v, step %d: found %v, skipped %v, left over %q", late, steps, found, skipped, temps(t, s.dir))
			}
			for _, f := range found {
				checkWhole(t, again, g, f)
			}
		}
	}
}
