package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// run is a job of the tests' name that has one generation, written by a clock.
func run(t *testing.T, s *Store, id replica.JobID, step replica.Step, clock time.Time) {
	t.Helper()
	runIn(t, s, replica.ClusterID{1}, id, step, clock)
}

// runIn is run in a cluster.
func runIn(t *testing.T, s *Store, cluster replica.ClusterID, id replica.JobID, step replica.Step, clock time.Time) {
	t.Helper()
	g, gen := testRegions(t), replica.Generation{Epoch: 1, Step: step}
	mark := testMarker(gen)
	mark.Job = id
	_, parts := testParts(g, gen)
	for _, p := range parts {
		p.m.Cluster, p.m.Job, p.m.FrozenRoot = cluster, id, replica.Digest{}
		p.m.Root = hash(p.m.RootInput())
		info, err := s.WriteShard(t.Context(), jobName, p.m, g.Regions, nil, p.read)
		if err != nil {
			t.Fatal(err)
		}
		mark.Shards = append(mark.Shards, info)
	}
	if err := s.tree.commit(t.Context(), mark, clock); err != nil {
		t.Fatal(err)
	}
}

// generationPath is where a job's generation lies.
func generationPath(s *Store, id replica.JobID, step replica.Step) string {
	return filepath.Join(s.dir, jobName, id.String(), generationDir(replica.Generation{Epoch: 1, Step: step}))
}

// Which of two jobs of one name goes on used to be the file times' to say: a copy, a touch, or a writer's clock made it the older one.
func TestTheJobCommittedLastComesFirst(t *testing.T) {
	older, newer := replica.JobID{1}, replica.JobID{2}
	noon := time.Unix(1e9, 0)
	for _, tc := range []struct {
		name   string
		clocks [2]time.Time // of the older job's writer, and of the newer one's
	}{
		{"clocks agree", [2]time.Time{noon, noon.Add(time.Hour)}},
		{"within one millisecond", [2]time.Time{noon, noon}},
		{"the later clock is behind", [2]time.Time{noon, noon.Add(-time.Hour)}},
		{"no clock was ever set", [2]time.Time{time.Unix(0, 0), time.Unix(-1, 0)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t, t.TempDir())
			run(t, s, older, 500, tc.clocks[0])
			run(t, s, newer, 9, tc.clocks[1])
			for _, touched := range []replica.JobID{older, newer} {
				for id, at := range map[replica.JobID]time.Time{older: noon, newer: noon} {
					if id == touched {
						at = noon.Add(24 * time.Hour)
					}
					step := map[replica.JobID]replica.Step{older: 500, newer: 9}[id]
					if err := os.Chtimes(filepath.Join(generationPath(s, id, step), markerName), at, at); err != nil {
						t.Fatal(err)
					}
				}
				found, skipped := find(t, s, replica.JobID{})
				if len(found) != 2 || len(skipped) != 0 || found[0].Job != newer {
					t.Errorf("with the marker of %v touched: found %+v, skipped %v", touched, found, skipped)
				}
			}
			run(t, s, older, 501, tc.clocks[1]) // it was resumed, and goes on
			if found, _ := find(t, s, replica.JobID{}); found[0].Job != older || found[0].Generation.Step != 501 {
				t.Errorf("after the older one went on: %+v", found)
			}
		})
	}
}

// A marker that can't be read may be the newest: none is written beside it, and so none too low.
func TestNoOrderBehindWhatCannotBeRead(t *testing.T) {
	s := open(t, t.TempDir())
	run(t, s, replica.JobID{1}, 500, time.Unix(1e9, 0))
	name := filepath.Join(generationPath(s, replica.JobID{1}, 500), markerName)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(markerName, name); err != nil { // it leads to itself: the disk refuses
		t.Fatal(err)
	}
	if err := writeGeneration(t.Context(), s, testRegions(t), replica.Generation{Epoch: 1, Step: 9}); err == nil {
		t.Error("a marker was written")
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeGeneration(t.Context(), s, testRegions(t), replica.Generation{Epoch: 1, Step: 9}); err != nil {
		t.Errorf("beside one that is damaged: %v", err)
	}
}
