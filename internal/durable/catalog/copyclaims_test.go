package catalog

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/replica"
)

// epochs are those of a run that are claimed.
func epochs(t *testing.T, c *Catalog, r find.Run) (list []replica.Epoch) {
	t.Helper()
	claims, err := c.Claims(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range claims {
		list = append(list, h.Epoch)
	}
	return list
}

// resumes has a fleet take the run in the next epoch, and commit a generation in it.
func resumes(t *testing.T, c *Catalog, name string) write.Fleet {
	t.Helper()
	f := find0(t, c)[0]
	fleet := write.Fleet{Cluster: durabletest.Cluster, Name: name}
	e, _, err := c.Resume(t.Context(), f.Run, fleet, f.Position.Epoch)
	if err != nil {
		t.Fatal(err)
	}
	fleet.Epoch = e
	if _, err := writeAs(t.Context(), c, replica.Generation{Epoch: e, Step: f.Generation.Step + 2}, 1, 17, fleet); err != nil {
		t.Fatal(err)
	}
	return fleet
}

// TestCopyTakesClaimsOfItsEpoch: with a generation go the claims up to its epoch, and with a later one those up to that.
func TestCopyTakesClaimsOfItsEpoch(t *testing.T) {
	c, to := over(memory.New(), 1), over(memory.New(), 1)
	mustWrite(t, c, gen(2), 1)
	resumes(t, c, "second")
	resumes(t, c, "third")
	found := find0(t, c)
	slices.SortFunc(found, func(a, b find.Found) int { return a.Generation.Compare(b.Generation) })
	want := []replica.Epoch{}
	for i, f := range found {
		if _, err := c.Copy(t.Context(), f, to); err != nil {
			t.Fatal(err)
		}
		want = append(want, replica.Epoch(i+1))
		if got := epochs(t, to, f.Run); !slices.Equal(got, want) {
			t.Errorf("with generation %v the epochs %v are claimed, want %v", f.Generation, got, want)
		}
	}
	if a, b := runOf(t, c), runOf(t, to); a != b {
		t.Errorf("the run is %+v, its copy %+v", a, b)
	}
}

// TestCopyFencesNobody: a fleet that trains on the target goes on, whatever is copied there.
func TestCopyFencesNobody(t *testing.T) {
	a := memory.New()
	c := over(a, 1)
	mustWrite(t, c, gen(2), 1)
	to := over(a.Clone(), 1)
	moved := resumes(t, to, "moved")
	resumes(t, c, "stays")
	resumes(t, c, "stays-2")
	for i, f := range find0(t, c) {
		if f.Generation.Epoch == moved.Epoch {
			continue // both have one of that name
		}
		if _, err := c.Copy(t.Context(), f, to); err != nil {
			t.Fatal(err)
		}
		if _, err := writeAs(t.Context(), to, replica.Generation{Epoch: moved.Epoch, Step: replica.Step(100 + i)}, 1, 18, moved); err != nil {
			t.Errorf("generation %v was copied, and its fleet is fenced: %v", f.Generation, err)
		}
	}
}
