package replica

import (
	"fmt"
	"slices"
)

// Check tells what is wrong with a layout: every rank in exactly one group, groups numbered from 0 without a gap.
func (l Layout) Check() error {
	if l.World == 0 || l.World > MaxRanks {
		return fmt.Errorf("world of %d ranks: want 1 to %d", l.World, MaxRanks)
	}
	if len(l.Groups) != int(l.World) {
		return fmt.Errorf("groups for %d ranks, but the world has %d: name one group for each rank", len(l.Groups), l.World)
	}
	seen := make([]bool, l.World)
	n := 0
	for r, g := range l.Groups {
		if uint32(g) >= l.World {
			return fmt.Errorf("rank %d is in group %d, but %d ranks have at most groups 0 to %d", r, g, l.World, l.World-1)
		}
		if !seen[g] {
			seen[g] = true
			n++
		}
	}
	for g := range n {
		if !seen[g] {
			return fmt.Errorf("group %d has no rank, though there are %d groups: number them from 0 without a gap", g, n)
		}
	}
	return nil
}

// Apart is the layout in which each rank is a group of its own.
func Apart(world uint32) Layout {
	l := Layout{World: world, Groups: make([]GroupID, world)}
	for r := range l.Groups {
		l.Groups[r] = GroupID(r)
	}
	return l
}

// NumGroups is the number of replica groups of a checked layout.
func (l Layout) NumGroups() int {
	n := 0
	for _, g := range l.Groups {
		n = max(n, int(g)+1)
	}
	return n
}

// Members are the ranks of each group, in rising order.
func (l Layout) Members() [][]Rank {
	m := make([][]Rank, l.NumGroups())
	for r, g := range l.Groups {
		m[g] = append(m[g], Rank(r))
	}
	return m
}

// Leads is the lowest rank of a rank's group.
func (l Layout) Leads(r Rank) Rank {
	return Rank(slices.Index(l.Groups, l.Groups[r]))
}

// MaxSlots is how many slots an arena may have, and has where there are no mirrors beside it.
const MaxSlots = 4

// DefaultSlots is how many slots the arenas of a job have, its mirrors' too, where its options name no number: a rank's arena and one mirror of it
// take four times the replicated part at most. A part that fewer ranks compute than must hold it is mirrored for certain: two slots then. Ranks that
// have not named their groups yet may all be apart.
func (l Layout) DefaultSlots(minCopies int) int {
	if minCopies == 0 {
		minCopies = DefaultMinCopies
	}
	members := make(map[GroupID]int)
	for _, g := range l.Groups {
		members[g]++
	}
	if len(members) == 0 {
		members[NoGroup] = 1
	}
	for _, n := range members {
		if n < minCopies {
			return 2
		}
	}
	return MaxSlots
}

// Equal tells whether two layouts are the same.
func (l Layout) Equal(o Layout) bool {
	if l.World != o.World || len(l.Groups) != len(o.Groups) {
		return false
	}
	for i, g := range l.Groups {
		if o.Groups[i] != g {
			return false
		}
	}
	return true
}

// DefaultLoneAhead is what Options.LoneAhead is unless set, in steps: one step is computed again rather than resting on one process's word.
const DefaultLoneAhead Step = 2

// DefaultMinCopies is what Options.MinCopies is unless set.
const DefaultMinCopies = 2

// WithDefaults fills zero options with their defaults.
func (o Options) WithDefaults() Options {
	if o.MinCopies == 0 {
		o.MinCopies = DefaultMinCopies
	}
	if o.Cadence == 0 {
		o.Cadence = 1
	}
	if o.Slots == 0 {
		o.Slots = MaxSlots
	}
	if o.ChunkBytes == 0 {
		o.ChunkBytes = DefaultChunkBytes
	}
	if o.PrivateCap == 0 {
		o.PrivateCap = MaxPrivateBytes
	}
	if o.LoneAhead == 0 {
		o.LoneAhead = DefaultLoneAhead
	}
	return o
}

// Check tells what is wrong with options whose defaults were filled in, for a job of so many groups.
func (o Options) Check(groups int) error {
	switch {
	case o.MinCopies < 1 || o.MinCopies > 16:
		return fmt.Errorf("min_copies %d: want 1 to 16", o.MinCopies)
	case o.Cadence < 1 || o.Cadence > 1<<20:
		return fmt.Errorf("cadence %d: want 1 to %d steps", o.Cadence, 1<<20)
	case o.Slots < 2 || o.Slots > 4:
		return fmt.Errorf("slots %d: want 2 to 4", o.Slots)
	case o.ChunkBytes < 4096 || o.ChunkBytes > 1<<30:
		return fmt.Errorf("chunk_bytes %d: want 4096 to %d", o.ChunkBytes, 1<<30)
	case o.DurableEvery == DurableNever:
		return fmt.Errorf("durable_every: a job that writes nothing has 0")
	case CheckDurableEvery(o.DurableEvery) != nil:
		return CheckDurableEvery(o.DurableEvery)
	case len(o.Nondeterministic) != 0 && len(o.Nondeterministic) != groups:
		return fmt.Errorf("nondeterministic is given for %d groups, but the layout has %d", len(o.Nondeterministic), groups)
	}
	return nil
}
