package room

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

func TestMirrorsOf(t *testing.T) {
	job := fixture.Job()
	job.Layout = replica.Layout{World: 4, Groups: []replica.GroupID{1, 0, 1, 0}}
	job.Mirrors = [][]replica.NodeName{{"a"}, {"b", "c"}, nil}
	job.GroupMirrors = [][]replica.NodeName{{"x"}, {"y", "z"}}
	for g, want := range []replica.Rank{1, 0} {
		if got := Speaker(job, replica.GroupID(g)); got != want {
			t.Errorf("group %d is sent by rank %d, want the lowest: %d", g, got, want)
		}
	}
	for _, c := range []struct {
		kind shm.PlaceKind
		rank replica.Rank
		want []replica.NodeName
	}{
		{shm.Ring, 0, job.Mirrors[0]}, {shm.Ring, 1, job.Mirrors[1]}, {shm.Ring, 2, nil}, {shm.Ring, 3, nil}, {shm.Ring, 9, nil},
		{shm.Slot, 0, job.GroupMirrors[1]}, {shm.Slot, 1, job.GroupMirrors[0]}, {shm.Slot, 2, nil}, {shm.Slot, 3, nil},
		{shm.Frozen, 0, nil}, {shm.Frozen, 1, nil},
	} {
		if got := MirrorsOf(job, c.kind, c.rank); !slices.Equal(got, c.want) {
			t.Errorf("kind %d of rank %d is mirrored by %v, want %v", c.kind, c.rank, got, c.want)
		}
	}
	job.GroupMirrors = nil
	if got := MirrorsOf(job, shm.Slot, 0); got != nil {
		t.Errorf("a job without group mirrors has %v", got)
	}
}
