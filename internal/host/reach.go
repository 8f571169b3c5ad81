package host

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

const (
	strainFor   = time.Second      // pushes to a node that failed for so long are said to the leader
	strainEvery = time.Second      // again so often while they do
	strainOver  = 10 * time.Second // without a failure it begins anew
	triesSaid   = 3                // fetches of a part of a plan that failed, likewise
)

// strainKey is a part that could not be brought to a node; strain is since when. That another part gets there says nothing of it: a node may
// have room for the small one alone. Owned by the host.
type strainKey struct {
	job  replica.JobID
	node replica.NodeName
	part replica.Part
}

type strain struct{ since, last, said time.Time }

// strained follows the end of a push: what keeps failing is said to the leader, which has another node mirror the part. What the other end
// refuses because the two know different states of the job passes by itself.
func (h *Host) strained(lj *localJob, key pushKey, began time.Time, err error) {
	k := strainKey{lj.job.ID, key.node, key.part}
	if err == nil {
		delete(h.strains, k)
		return
	}
	for _, passes := range []error{context.Canceled, mover.ErrSuperseded, transfer.ErrFenced, transfer.ErrNotYet} {
		if errors.Is(err, passes) {
			return
		}
	}
	now := time.Now()
	s := h.strains[k]
	if s.since.IsZero() || began.Sub(s.last) > strainOver { // one that hangs fails no more often than it is given up
		s = strain{since: began}
	}
	if s.last = now; now.Sub(s.since) >= strainFor && now.Sub(s.said) >= strainEvery {
		s.said = now
		h.send(control.Unreached{Job: lj.job.ID, To: []replica.NodeName{key.node}, Part: key.part, Why: err.Error(), Epoch: lj.job.Epoch, TookMS: millis(now.Sub(began))})
	}
	h.strains[k] = s
}

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
