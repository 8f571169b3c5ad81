package host

import (
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// triesSaid is how many fetches of a part of a plan fail before that is said to the leader.
const triesSaid = 3

// missed is the holders of a part that a fetch could not dial.
type missed struct {
	part  replica.Part
	nodes []replica.NodeName
	took  time.Duration
}

func millis(d time.Duration) uint64 { return uint64(max(d, 0).Milliseconds()) }

// fetchFailed says that a part of the plan can't be had from where it should come from: the leader has a third node fetch it.
func (h *Host) fetchFailed(lj *localJob, epoch replica.Epoch, rank replica.Rank, tries int, missed missed, err error) {
	if lr := lj.ranks[rank]; lr != nil && tries == triesSaid {
		lr.failing = replica.Cut(err.Error(), maxFailing)
	}
	part, nodes := missed.part, missed.nodes
	if tries >= triesSaid && len(nodes) > 0 {
		if part.Kind == replica.FrozenPart {
			part.Kind = replica.ReplicatedPart // it lies beside the parts that bind it
		}
		h.send(control.Unreached{Job: lj.job.ID, To: nodes, Part: part, Why: err.Error(), Fetch: true, Epoch: epoch, Rank: rank, TookMS: millis(missed.took)})
	}
}

// relays are the nodes that were asked to fetch parts of the plan of an epoch for others, and so are holders besides those of the plan.
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

func (r *relays) has(part replica.Part, epoch replica.Epoch, n replica.NodeName) bool {
	return slices.ContainsFunc(r.of(part, epoch), func(h replica.Holder) bool { return h.Node == n })
}

// relay takes the leader's word that a node fetches a part for another one. Here it is fetched, if this is that node.
func (h *Host) relay(lj *localJob, o control.RelayOrder) {
	lj.relays.add(o)
	h.fetchMirrors(lj)
}

// fetchRelayed fetches what the leader wants this node to have for others.
func (h *Host) fetchRelayed(lj *localJob) {
	if lj.relays.epoch != lj.job.Epoch {
		return
	}
	for part, orders := range lj.relays.by {
		for _, o := range orders {
			if o.Node.Node == h.self.Name {
				h.fetchMirror(lj, part, o.Rank)
			}
		}
	}
}
