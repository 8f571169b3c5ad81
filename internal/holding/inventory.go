package holding

import (
	"slices"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Copy is a part that lies sealed in an arena here.
type Copy struct {
	Arena *Arena
	Place shm.Place
	Info  shm.Info
	Held  replica.Held // as the node's report has it
}

// PartIn names what lies in a kind of place of a rank's arena; group is the rank's.
func PartIn(k shm.PlaceKind, group replica.GroupID, rank replica.Rank) replica.Part {
	switch k {
	case shm.Slot:
		return replica.OfGroup(group)
	case shm.Ring:
		return replica.OfRank(rank)
	case shm.Frozen:
	}
	return replica.FrozenOf(group)
}

// KindFor is the kind of place that a part lies in.
func KindFor(p replica.Part) shm.PlaceKind {
	switch p.Kind {
	case replica.PrivatePart:
		return shm.Ring
	case replica.FrozenPart:
		return shm.Frozen
	case replica.ReplicatedPart:
	}
	return shm.Slot
}

// AppendCopies adds every part that lies sealed in the arena; group is that of its rank.
func (a *Arena) AppendCopies(to []Copy, group replica.GroupID) []Copy {
	rank, isMirror, places := a.Spec().Rank, a.Spec().Mirror, a.Places()
	to = slices.Grow(to, len(places)) // at once: a Copy has some hundred bytes
	for _, p := range places {
		if a.Word(p).State() != replica.SlotSealed {
			continue
		}
		info, err := a.Info(p)
		if err != nil {
			continue // freed meanwhile, or garbage: not held
		}
		held := replica.Held{Part: PartIn(p.Kind, group, rank), Generation: info.Generation, Root: info.Root, Mirror: isMirror, DaemonMade: info.Flags&replica.DaemonMade != 0, Rank: rank}
		if !planted.Heir {
			held.Producer, held.Fetched = info.Incarnation, !isMirror && info.Rank != rank
		}
		to = append(to, Copy{a, p, info, held})
	}
	return to
}

// Find locates a part among copies by generation and root, in the arena first if it is there; frozen parts are found by root alone.
func Find(copies []Copy, first *Arena, part replica.Part, g replica.Generation, root replica.Digest) (best Copy, ok bool) {
	for _, c := range copies {
		if c.Held.Part == part && c.Info.Root == root && (part.Kind == replica.FrozenPart || c.Info.Generation == g) && (!ok || c.Arena == first) {
			best, ok = c, true
		}
	}
	return best, ok
}

// Whole tells whether a mirrored part could be restored from its arena: a replicated part needs the frozen one it binds.
func (c Copy) Whole() bool {
	if c.Place.Kind == shm.Slot && c.Info.FrozenRoot.IsZero() && c.Arena.Header().FrozenBytes > 0 {
		return false // sealed by who did not know its frozen regions: no load would take it
	}
	if !c.Held.Mirror || c.Info.FrozenRoot.IsZero() {
		return true
	}
	return c.frozen() != nil
}

// frozen describes the frozen part that the copy's root binds; nil: it does not lie beside it.
func (c Copy) frozen() *shm.Info {
	f, err := c.Arena.Info(shm.Place{Kind: shm.Frozen})
	if err != nil || f.Root != c.Info.FrozenRoot {
		return nil
	}
	return &f
}

// Holds lists the generations whose replicated and private part are both sealed here, in order.
func (a *Arena) Holds() []replica.Generation {
	var slots, rings []replica.Generation
	for _, p := range a.Places() {
		if info, err := a.Info(p); err == nil {
			switch p.Kind {
			case shm.Slot:
				slots = append(slots, info.Generation)
			case shm.Ring:
				rings = append(rings, info.Generation)
			case shm.Frozen: // of no generation
			}
		}
	}
	slots = slices.DeleteFunc(slots, func(g replica.Generation) bool { return !slices.Contains(rings, g) })
	slices.SortFunc(slots, replica.Generation.Compare)
	return slots
}

// At finds what lies sealed of a generation in a kind of place.
func (a *Arena) At(k shm.PlaceKind, g replica.Generation) (shm.Place, shm.Info, bool) {
	for _, p := range a.Places() {
		if p.Kind != k {
			continue
		}
		if info, err := a.Info(p); err == nil && info.Generation == g {
			return p, info, true
		}
	}
	return shm.Place{}, shm.Info{}, false
}

// Newest is the newest step of an epoch of which a part lies sealed in a kind of place; 0: none does.
func (a *Arena) Newest(k shm.PlaceKind, e replica.Epoch) (at replica.Step) {
	for _, p := range a.Places() {
		if p.Kind != k {
			continue
		}
		if info, err := a.Info(p); err == nil && info.Generation.Epoch == e {
			at = max(at, info.Generation.Step)
		}
	}
	return at
}

// NewestSealed is the newest generation of which a part lies sealed in a kind of place; zero: none does.
func (a *Arena) NewestSealed(k shm.PlaceKind) (newest replica.Generation) {
	for _, p := range a.Places() {
		if p.Kind != k {
			continue
		}
		if info, err := a.Info(p); err == nil && info.Generation.Compare(newest) > 0 {
			newest = info.Generation
		}
	}
	return newest
}

// Captured tells whether what a rank seals at the beginning of an epoch is sealed here: a replicated and a private part, or a private part that says
// that another rank seals the replicated one.
func (a *Arena) Captured(e replica.Epoch) bool {
	var shared, own bool
	for _, p := range a.Places() {
		if info, err := a.Info(p); err == nil && info.Generation.Epoch == e {
			own = own || p.Kind == shm.Ring
			shared = shared || p.Kind == shm.Slot || info.Flags&replica.SharedElsewhere != 0
		}
	}
	return shared && own
}

// Misses tells whether the arena lacks one of generation g's two parts, and no slot is on its way that may be it.
func (a *Arena) Misses(g replica.Generation) bool {
	has := map[shm.PlaceKind]bool{}
	for _, p := range a.Places() {
		if p.Kind == shm.Frozen {
			continue
		}
		switch a.Word(p).State() {
		case replica.SlotCopying, replica.SlotCopied:
			if p.Kind == shm.Slot {
				return false // perhaps this very one; it is SEALED or gone in a moment
			}
		case replica.SlotSealed:
			if info, err := a.Info(p); err == nil && info.Generation == g {
				has[p.Kind] = true
			}
		case replica.SlotFree, replica.SlotTorn:
		}
	}
	return !has[shm.Slot] || !has[shm.Ring]
}

// Needed tells whether a replicated or private part of a wanted generation lies sealed here, or the daemon writes to a place.
func (a *Arena) Needed(wanted func(replica.Generation) bool) bool {
	for _, p := range a.Places() {
		if a.staged[p] != nil {
			return true
		}
		if info, err := a.Info(p); err == nil && p.Kind != shm.Frozen && wanted(info.Generation) {
			return true
		}
	}
	return false
}
