package fetch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Log takes what an operator should know of.
type Log interface {
	Failed(what, subject, why string)
	Fetching(job *replica.Job, rank replica.Rank, part replica.Part, epoch replica.Epoch, bytes uint64, from []replica.Holder)
	Verified(job *replica.Job, rank replica.Rank, part replica.Part, epoch replica.Epoch)
	Moved(job *replica.Job, rank replica.Rank, t journal.Transferred)
}

// Mover brings the bytes: *mover.Mover.
type Mover interface {
	Fetch(context.Context, mover.Wanted, func(replica.Manifest) (mover.Staging, error)) (mover.Fetched, error)
}

// Fetcher brings parts to a node. Its methods run beside the node, and may take as long as the bytes do.
type Fetcher struct {
	Self    replica.NodeName
	Cluster replica.ClusterID
	Log     Log
	Mover   Mover
	// Ask has a request served and waits for that. An error: the context or the node ended first, and the request must not be read.
	Ask func(context.Context, Request) error
	// Reuse looks for bytes of a part that an arena has already; (*shm.Staging).Reuse, unless a test has another.
	Reuse func(*shm.Staging) error
}

// Parts is what one rank needs of one plan.
type Parts struct {
	*Fetcher
	Job         *replica.Job
	Plan        *replica.Plan
	Rank        replica.Rank // for whom
	Incarnation replica.Incarnation
	Tier        replica.Tier // the farthest that was needed
	Missed      room.Missed  // by the newest fetch
}

// Into names the arena that a part is for.
type Into func(replica.Manifest) (*holding.Arena, error)

// Ensure returns the place of a part in an arena, fetching it where it is not there.
func (f *Parts) Ensure(ctx context.Context, arena *holding.Arena, kind shm.PlaceKind, part replica.Part) (shm.Place, error) {
	src, ok := f.Plan.Source(part)
	if !ok {
		return shm.Place{}, fmt.Errorf("plan of epoch %d has no source for %v", f.Plan.Epoch, part)
	}
	have := copyWanted{job: f.Job.ID, arena: arena, part: part, generation: f.Plan.Generation, root: src.Root}
	if err := f.Ask(ctx, &have); err != nil {
		return shm.Place{}, err
	}
	place, root := have.at.Place, have.at.Info.FrozenRoot
	if !have.found || !f.Rehash(ctx, arena, have.at.Place, src) {
		_, at, m, err := f.Fetch(ctx, func(replica.Manifest) (*holding.Arena, error) { return arena, nil }, kind, part, src)
		if err != nil {
			return shm.Place{}, fmt.Errorf("fetch %v of generation %v: %w", part, f.Plan.Generation, err)
		}
		place, root = at, m.FrozenRoot
	}
	if err := f.Frozen(ctx, arena, root, src, part); err != nil {
		return shm.Place{}, err
	}
	f.Log.Verified(f.Job, f.Rank, part, f.Plan.Epoch)
	return place, nil
}

// Rehash reads a sealed place whole: what is in memory already counts only if it is rehashed now (protocol section 6,
// Restore), or was since the fence. Where a bit has flipped the place is given up, so that a good copy can be fetched into one; of
// is the planned part that then can't be had from here.
func (f *Parts) Rehash(ctx context.Context, arena *holding.Arena, p shm.Place, of replica.Source) bool {
	lost := replica.Held{Part: of.Part, Generation: f.Plan.Generation, Root: of.Root, Rank: f.Rank}
	return f.wasRead(ctx, f.Job.ID, arena, p) || f.Verify(ctx, f.Job.ID, arena, p, lost)
}

// Frozen brings the frozen part that a replicated part's root binds.
func (f *Parts) Frozen(ctx context.Context, arena *holding.Arena, root replica.Digest, src replica.Source, part replica.Part) error {
	if part.Kind != replica.ReplicatedPart || root.IsZero() {
		return nil
	}
	frozen := replica.Part{Kind: replica.FrozenPart, Index: part.Index}
	if info, err := arena.Sealed(shm.Place{Kind: shm.Frozen}); err == nil && info.Root == root && f.Rehash(ctx, arena, shm.Place{Kind: shm.Frozen}, src) {
		return nil
	}
	src.Part, src.Root = frozen, root
	if _, _, _, err := f.Fetch(ctx, func(replica.Manifest) (*holding.Arena, error) { return arena, nil }, shm.Frozen, frozen, src); err != nil {
		return fmt.Errorf("fetch %v: %w", frozen, err)
	}
	return nil
}

// Fetch moves a part into a staging place of the arena that into names, from every healthy holder or from disk, and seals it
// under the plan's root. into may take its time; what the plan has lost meanwhile is not staged.
func (f *Parts) Fetch(ctx context.Context, into Into, kind shm.PlaceKind, part replica.Part, src replica.Source) (
	arena *holding.Arena, place shm.Place, manifest replica.Manifest, err error,
) {
	began := time.Now()
	f.Tier = max(f.Tier, min(src.Tier, replica.Disk), replica.PeerRAM)
	w := mover.Wanted{Key: transfer.Key{Cluster: f.Cluster, Era: f.Job.Era, Job: f.Job.ID, Epoch: f.Plan.Epoch, Part: part,
		Generation: f.Plan.Generation, Root: src.Root, Rank: f.Rank, Incarnation: f.Incarnation}}
	if src.Tier == replica.Disk {
		w.Disk = f.Job.Name
	} else {
		w.Holders = f.Donors(ctx, src, part)
		w.Receivers = f.receivers(src, part)
	}
	var staged *holding.Arena
	var staging *shm.Staging
	got, err := f.Mover.Fetch(ctx, w, func(m replica.Manifest) (mover.Staging, error) {
		var err error
		if arena, err = into(m); err != nil {
			return nil, err
		}
		var s *shm.Staging
		if place, s, err = f.Stage(ctx, f.Job.ID, arena, m, f); err != nil {
			return nil, err
		}
		staged, staging = arena, s
		f.Log.Fetching(f.Job, f.Rank, part, f.Plan.Epoch, m.Bytes, w.Holders)
		return s, nil
	})
	f.Missed = room.Missed{Part: part, Nodes: got.Unreached, Took: time.Since(began)}
	f.report(ctx, &fetchEnd{f, part, src.Root, got, staged, place, staging})
	if err != nil {
		return nil, place, got.Manifest, err
	}
	f.Log.Moved(f.Job, f.Rank, journal.Transferred{Part: part, Epoch: f.Plan.Epoch, Tier: max(src.Tier, replica.PeerRAM),
		Bytes: got.Report.Bytes, Reused: got.Report.Reused, By: got.Report.By, Failed: got.Report.Failed, Took: time.Since(began)})
	return arena, place, got.Manifest, nil
}

// fetchEnd gives back the place of a fetch, and takes in which copies were found bad.
type fetchEnd struct {
	of     *Parts
	part   replica.Part
	root   replica.Digest
	got    mover.Fetched
	staged *holding.Arena // nil: no place was taken
	place  shm.Place

	staging *shm.Staging
}

func (q *fetchEnd) Serve(n Node) {
	f := q.of
	n.Corrupt(control.CorruptCopy{Job: f.Job.ID, Part: q.part, Generation: f.Plan.Generation, Root: q.root}, q.got.Report.Corrupt)
	if v, known := n.Job(f.Job.ID); known && q.got.BadDisk {
		n.Spoiled(f.Job.ID, room.Lost(v.Job, q.part, f.Plan.Generation, q.root, f.Rank), true)
	}
	if q.staged != nil {
		q.staged.Unstage(q.place, q.staging)
	}
}

// Donors are the holders of the plan in the order in which to ask them, and behind them who has been asked since to fetch the part for others.
func (f *Parts) Donors(ctx context.Context, src replica.Source, part replica.Part) []replica.Holder {
	q := relaysWanted{job: f.Job.ID, part: part, epoch: f.Plan.Epoch}
	all := slices.Clone(src.Holders)
	if f.Ask(ctx, &q) != nil {
		return all
	}
	all = place.Donors(f.Plan, q.nodes, f.Self, f.Rank, src)
	for _, h := range q.holders {
		if h.Node != f.Self && !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	return all
}

// maxReceivers bounds how many of those that fetch a part as well are asked for what they have: what each has reaches all soon.
const maxReceivers = 4

// receivers are the nodes that fetch a part as well under the plan: for other ranks of its group, or to mirror it. Each rank begins with
// those after it.
func (f *Parts) receivers(src replica.Source, part replica.Part) (nodes []replica.NodeName) {
	if part.Kind == replica.PrivatePart {
		return nil
	}
	skip := map[replica.NodeName]bool{"": true}
	for _, h := range src.Holders {
		skip[h.Node] = true
	}
	add := func(n replica.NodeName) {
		if !skip[n] && len(nodes) < maxReceivers {
			skip[n] = true
			nodes = append(nodes, n)
		}
	}
	groups := f.Plan.Layout.Groups
	for i := range len(groups) - 1 {
		r := (int(f.Rank) + 1 + i) % len(groups)
		if uint32(groups[r]) == part.Index && r < len(f.Plan.Ranks) {
			add(f.Plan.Ranks[r].Node)
		}
	}
	if int(part.Index) < len(f.Plan.GroupMirrors) {
		for _, n := range f.Plan.GroupMirrors[part.Index] {
			add(n)
		}
	}
	return nodes
}

// Admit tells whether the plan is still the one to carry out.
func (f *Parts) Admit(n Node) error {
	v, known := n.Job(f.Job.ID)
	if !known || v.Job.Phase == replica.Ended || max(v.Fenced, v.Job.ClosedEpoch) >= f.Plan.Epoch {
		return fmt.Errorf("%w: epoch %d of job %s is closed", transfer.ErrFenced, f.Plan.Epoch, f.Job.Name)
	}
	return nil
}
