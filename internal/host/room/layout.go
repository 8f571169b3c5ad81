package room

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Group is a rank's group.
func Group(job *replica.Job, r replica.Rank) replica.GroupID {
	if int(r) < len(job.Layout.Groups) {
		return job.Layout.Groups[r]
	}
	return 0
}

// Speaker is the lowest rank of a group: the one that sends the group's part to its mirrors.
func Speaker(job *replica.Job, g replica.GroupID) replica.Rank {
	for r, have := range job.Layout.Groups {
		if have == g {
			return replica.Rank(r)
		}
	}
	return 0
}

// Part names what lies in a kind of place of a rank's arena.
func Part(job *replica.Job, k shm.PlaceKind, r replica.Rank) replica.Part {
	return holding.PartIn(k, Group(job, r), r)
}

// MirrorsOf names the nodes that mirror what lies in a kind of place of a rank's arena: none for a group's part, except for that of its speaker.
func MirrorsOf(job *replica.Job, k shm.PlaceKind, r replica.Rank) []replica.NodeName {
	g := Group(job, r)
	switch {
	case k == shm.Ring && int(r) < len(job.Mirrors):
		return job.Mirrors[r]
	case k == shm.Slot && int(g) < len(job.GroupMirrors) && Speaker(job, g) == r:
		return job.GroupMirrors[g]
	}
	return nil
}

// MirrorsOfPart names the nodes that mirror a part which a rank makes. A frozen one goes where the parts go that bind it.
func MirrorsOfPart(job *replica.Job, p replica.Part, r replica.Rank) []replica.NodeName {
	kind := holding.KindFor(p)
	if kind == shm.Frozen {
		kind = shm.Slot
	}
	return MirrorsOf(job, kind, r)
}

// MirrorsFor names the nodes that mirror a rank's private part, or a group's, whoever makes it.
func MirrorsFor(job *replica.Job, p replica.Part) []replica.NodeName {
	lists := job.Mirrors
	if p.Kind == replica.ReplicatedPart {
		lists = job.GroupMirrors
	}
	if int(p.Index) < len(lists) {
		return lists[p.Index]
	}
	return nil
}

// Mirrored is the part that a mirror's arena holds.
func Mirrored(job *replica.Job, spec shm.Spec) replica.Part {
	if spec.Slots > 0 {
		return replica.OfGroup(Group(job, spec.Rank))
	}
	return replica.OfRank(spec.Rank)
}

// Spreads tells whether mirrors are still to get what the job resumes, or has resumed, at.
func Spreads(job *replica.Job) bool {
	return job.Phase == replica.Planned || job.Phase == replica.Open && job.Previous != nil
}

// MirrorsPlanned tells whether the plan has a node mirror a rank's private part or its group's, or a mirror that moved since is still to get
// what was resumed at.
func MirrorsPlanned(job *replica.Job, r replica.Rank, n replica.NodeName) bool {
	among := func(byRank, byGroup [][]replica.NodeName) bool {
		g := int(Group(job, r))
		return int(r) < len(byRank) && slices.Contains(byRank[r], n) || g < len(byGroup) && slices.Contains(byGroup[g], n)
	}
	p := job.Plan
	return p != nil && (among(p.Mirrors, p.GroupMirrors) || Spreads(job) && among(job.Mirrors, job.GroupMirrors))
}

// Useful tells whether an arena holds a part as new as the committed generation, or of the one that was committed before and is kept; or
// whether the daemon writes one into it.
func Useful(job *replica.Job, a *holding.Arena) bool {
	return a.Needed(func(g replica.Generation) bool {
		if g.Epoch < job.Grown { // its regions are those of before the job grew
			return false
		}
		return g.Step >= job.Committed.Step || job.Previous != nil && g == job.Previous.Generation
	})
}

// Fits refuses a replicated part whose geometry is not its group's.
func Fits(job *replica.Job, man replica.Manifest) error {
	if man.Part.Kind == replica.ReplicatedPart && man.Geometry != job.GroupGeometry[man.Part.Index] {
		return fmt.Errorf("mirror of %v: its manifest has geometry %v, the group has %v: the ranks of a group must register the same regions in the same order", man.Part, man.Geometry, job.GroupGeometry[man.Part.Index])
	}
	return nil
}

// Awaited tells whether the leader of an open job waits for what nodes answer to a candidate.
func Awaited(c replica.Candidate, job *replica.Job) bool {
	return c.N != 0 && job.Phase == replica.Open && c.Generation.Epoch == job.Position.Epoch && c.Position.Step > job.Position.Step
}

// ChunkBytes is the size of the chunks of the job's parts.
func ChunkBytes(job *replica.Job) uint32 {
	if job.Options.ChunkBytes != 0 {
		return job.Options.ChunkBytes
	}
	return replica.DefaultChunkBytes
}

// Slots is how many replicated parts each arena of the job holds.
func Slots(job *replica.Job) int {
	if job.Options.Slots != 0 {
		return job.Options.Slots
	}
	return 4
}

// PrivateCap bounds a private part of the job, in bytes.
func PrivateCap(job *replica.Job) uint64 {
	if job.Options.PrivateCap != 0 {
		return job.Options.PrivateCap
	}
	return replica.MaxPrivateBytes
}

// Lost is the part of the newest plan that is lost with a copy: a group's part where its frozen one is, which no plan names.
func Lost(job *replica.Job, p replica.Part, g replica.Generation, root replica.Digest, r replica.Rank) replica.Held {
	lost := replica.Held{Part: p, Generation: g, Root: root, Rank: r}
	if p.Kind == replica.FrozenPart && job.Plan != nil {
		if src, ok := job.Plan.Source(replica.OfGroup(replica.GroupID(p.Index))); ok {
			lost.Part, lost.Root = src.Part, src.Root
		}
	}
	return lost
}
