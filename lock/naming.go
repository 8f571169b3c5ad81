package lock

import (
	"slices"

	"github.com/replicad/replicad/replica"
)

// Groups that the ranks name. Who replicates whom follows from the model's sharding, which only the processes know, and they know
// it before they claim their ranks. Until each rank has named its group the layout has every rank apart, so a rank's geometry lies
// under its own number; and no plan can be applied, since a plan needs every rank claimed.

// nameGroups prepares the layout of a job whose ranks name their groups; nil for any other.
func nameGroups(c *replica.CreateJob) ([]replica.GroupID, error) {
	if !c.NameGroups {
		return nil, nil
	}
	if c.Layout.World > replica.MaxRanks {
		return nil, nil // the layout's check says so
	}
	if len(c.Layout.Groups) != 0 || len(c.Options.Nondeterministic) != 0 || !c.Durable.IsZero() {
		return nil, refuse(Invalid, "create job %s: its %d ranks are to name their groups, but it has %d of them, %d options for groups, and goes on from %v: leave those out",
			c.Name, c.Layout.World, len(c.Layout.Groups), len(c.Options.Nondeterministic), c.Durable)
	}
	c.Layout = replica.Apart(c.Layout.World)
	return slices.Repeat([]replica.GroupID{replica.NoGroup}, int(c.Layout.World)), nil
}

// name takes the group that a rank names with its claim. The last one settles the layout; it is refused where the names of all are
// none: the process says so, and the job ends with its words if that comes again and again.
func name(j *replica.Job, c replica.Claim) error {
	if j.Naming == nil {
		return nil
	}
	if uint32(c.Group) >= j.Layout.World {
		return refuse(Invalid, "claim rank %d: it names no group below %d: name the rank's replica group with its claim", c.Rank, j.Layout.World)
	}
	j.Naming = slices.Clone(j.Naming)
	j.Naming[c.Rank] = c.Group
	if slices.Contains(j.Naming, replica.NoGroup) {
		return nil
	}
	l := replica.Layout{World: j.Layout.World, Groups: j.Naming}
	if err := l.Check(); err != nil {
		return refuse(Conflict, "claim rank %d: the ranks name the groups %v: %v", c.Rank, j.Naming, err)
	}
	geometry := make([]replica.Digest, l.NumGroups())
	for g, members := range l.Members() {
		geometry[g] = j.GroupGeometry[members[0]]
		for _, r := range members[1:] {
			if j.GroupGeometry[r] != geometry[g] {
				return refuse(Conflict, "claim rank %d: ranks %d and %d both name group %d, but their regions have geometries %v and %v: register the same regions in the same order on all ranks of a group",
					c.Rank, members[0], r, g, geometry[g], j.GroupGeometry[r])
			}
		}
	}
	j.Layout, j.GroupGeometry, j.GroupMirrors, j.Naming = l, geometry, make([][]replica.NodeName, l.NumGroups()), nil
	return nil
}
