package mirrors

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

// Held is what a node mirrors of a job. The room alone changes it; its owner reads it.
type Held struct {
	arenas   map[replica.Part]room.Mirror
	making   map[replica.Part]*Making
	fetching map[replica.Part]fetching
	relays   relays
}

// fetching is how far the fetch of a part for a plan is.
type fetching struct {
	epoch   replica.Epoch
	running bool
	retryAt time.Time
	tries   int // that failed
}

func newHeld() *Held {
	return &Held{arenas: map[replica.Part]room.Mirror{}, making: map[replica.Part]*Making{}, fetching: map[replica.Part]fetching{}}
}

// All lists the mirrors in one order.
func (h *Held) All() []room.Mirror {
	return slices.SortedFunc(maps.Values(h.arenas), func(a, b room.Mirror) int {
		return cmp.Or(cmp.Compare(a.Part.Kind, b.Part.Kind), cmp.Compare(a.Part.Index, b.Part.Index))
	})
}

// Arena is that of a rank's private part, or of a group's; nil: there is none.
func (h *Held) Arena(p replica.Part) *holding.Arena { return h.arenas[p].Arena }

// Coming lists the arenas that are on their way to the keeper.
func (h *Held) Coming() (list []room.Mirror) {
	for _, mk := range h.making {
		if mk.arena != nil {
			list = append(list, room.Mirror{Part: mk.key, Rank: mk.rank, Arena: mk.arena})
		}
	}
	return list
}

// Relays lists the nodes that were asked to fetch a part of the plan of an epoch for others, and so hold it besides those of the plan.
func (h *Held) Relays(part replica.Part, epoch replica.Epoch) []replica.Holder {
	return h.relays.of(part, epoch)
}

// Relayed tells whether a node was.
func (h *Held) Relayed(part replica.Part, epoch replica.Epoch, n replica.NodeName) bool {
	return slices.ContainsFunc(h.relays.of(part, epoch), func(h replica.Holder) bool { return h.Node == n })
}

// relays are the nodes that were asked to fetch parts of the plan of an epoch for others.
type relays struct {
	epoch replica.Epoch
	by    map[replica.Part][]control.RelayOrder
}

// maxRelays bounds the nodes that one part is fetched by for others.
const maxRelays = 8

func (r *relays) add(o control.RelayOrder) {
	if o.Epoch != r.epoch {
		r.epoch, r.by = o.Epoch, map[replica.Part][]control.RelayOrder{}
	}
	if have := r.by[o.Part]; !slices.Contains(have, o) && len(have) < maxRelays {
		r.by[o.Part] = append(have, o)
	}
}

// of lists who was asked for a part of the plan of an epoch; a frozen part lies beside its group's.
func (r *relays) of(part replica.Part, epoch replica.Epoch) (holders []replica.Holder) {
	if part.Kind == replica.FrozenPart {
		part.Kind = replica.ReplicatedPart
	}
	if r.epoch == epoch {
		for _, o := range r.by[part] {
			holders = append(holders, o.Node)
		}
	}
	return holders
}
