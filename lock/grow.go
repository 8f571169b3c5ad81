package lock

import (
	"slices"

	"github.com/replicad/replicad/replica"
)

// A growth gives the ranks of a job other regions between two steps, without a restart. It closes the epoch and opens the next one with the same
// claims: each rank seals the step that it stands at, laid out in the new way, and the job resumes at that. Until then the committed generation is
// that of before, and a fault takes the growth back whole: no step is lost, and nothing is half done.

// grow decides a growth. Invariant: all ranks stand at Step: each has asked for the growth there, and waits. The step need
// not be committed: what came into it may have no place in the regions of before.
func grow(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.Grow) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if j.Growth != nil && j.Epoch == c.Epoch+1 && j.Growth.Step == c.Step && slices.Equal(j.GroupGeometry, c.Geometries) {
		return false, nil
	}
	if err := cites(j, "growth", c.Epoch); err != nil {
		return false, err
	}
	switch {
	case j.ClosedEpoch >= c.Epoch:
		return false, refuse(Stale, "growth of epoch %d: it was closed", c.Epoch)
	case j.Phase != replica.Open:
		return false, refuse(NotYet, "growth of epoch %d: job %s is %v", c.Epoch, j.Name, j.Phase)
	case c.Step < j.Position.Step:
		return false, refuse(Stale, "growth at step %d: job %s is committed at %v", c.Step, j.Name, j.Position)
	case j.Epoch >= replica.MaxEpoch:
		return false, refuse(Invalid, "growth of epoch %d: no epoch is left", c.Epoch)
	case len(c.Geometries) != len(j.GroupGeometry) || slices.ContainsFunc(c.Geometries, replica.Digest.IsZero):
		return false, refuse(Invalid, "growth with %d geometries: want one of each of the %d groups of job %s", len(c.Geometries), len(j.GroupGeometry), j.Name)
	case len(c.Recipe) > replica.MaxRecipe:
		return false, refuse(Invalid, "growth with a recipe of %d bytes: want at most %d", len(c.Recipe), replica.MaxRecipe)
	}
	j.Growth = &replica.Growth{Step: c.Step, Geometries: j.GroupGeometry, Recipe: j.Recipe, Bytes: c.Bytes, What: replica.Cut(c.What, maxDetail)}
	j.GroupGeometry, j.Recipe = slices.Clone(c.Geometries), slices.Clone(c.Recipe)
	j.Faults = standing(j, nodes)
	j.ClosedEpoch, j.Epoch = j.Epoch, j.Epoch+1
	j.Phase, j.Plan = replica.Opening, nil
	return true, nil
}

// takeBack ends a growth that has not resumed; false: there is none.
func takeBack(j *replica.Job) bool {
	if j.Growth == nil {
		return false
	}
	j.GroupGeometry, j.Recipe, j.Growth = j.Growth.Geometries, j.Growth.Recipe, nil
	return true
}

// grownAt is the generation that the ranks of a job which grows seal, and at which it resumes.
func grownAt(j *replica.Job) replica.Generation {
	return replica.Generation{Epoch: j.Epoch, Step: j.Growth.Step}
}

// fitsGrowth refuses a recipe that the state has no room for. The recipe of before stays beside it until the growth has resumed.
func fitsGrowth(v View, c replica.Grow) error {
	if have := Size(v); have+uint64(len(c.Recipe)) > MaxView {
		return refuse(Full, "growth: its recipe of %d bytes does not fit into the cluster's state, which has %d MiB already: end another job first", len(c.Recipe), have>>20)
	}
	return nil
}

// recipeBytes is what the recipes of a job take of the state.
func recipeBytes(j *replica.Job) uint64 {
	n := len(j.Recipe)
	if j.Growth != nil {
		n += len(j.Growth.Recipe) + 16*len(j.Growth.Geometries)
	}
	return uint64(n)
}
