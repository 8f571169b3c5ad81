package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/restore"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// orderKey names an order, so that deriving it again does not send it again.
type orderKey struct {
	epoch  replica.Epoch
	action uint32
}

// order derives and sends the order each attached rank needs now.
func (h *Host) order(lj *localJob) {
	job := lj.job
	for r, lr := range lj.ranks {
		if lr.peer == nil || job.Phase == replica.Ended || lr.superseded(job) || lr.outgrown(job) {
			continue
		}
		here, done := h.restores.Done(job.ID, job.Epoch, r)
		switch {
		case job.Phase == replica.Opening && job.Naming == nil && !adopted(job) && lr.stopped() && job.Epoch > job.ClosedEpoch && lr.initial != job.Epoch:
			o := wire.Order{Action: wire.OrderInit, Step: job.Start()}
			if job.Growth != nil {
				if lr.arena.Grown() != job.Epoch {
					continue // it has not got its arena
				}
				o.Step = job.Growth.Step
			}
			h.orderOnce(lr, job.Epoch, o)
		case job.Phase == replica.Planned && job.Plan != nil && lr.stopped() && lr.loaded != job.Epoch && lr.rejected != job.Epoch && done:
			group, _ := job.Plan.Source(replica.OfGroup(room.Group(lj.job, r)))
			private, _ := job.Plan.Source(replica.OfRank(r))
			h.orderOnce(lr, job.Epoch, wire.Order{Action: wire.OrderLoad, Source: here.Tier, Step: job.Plan.Generation.Step, Generation: job.Plan.Generation,
				Slot: uint32(here.Slot.Index), Place: uint32(here.Ring.Index), ReplicatedRoot: group.Root, PrivateRoot: private.Root})
		case job.Phase == replica.Open && lr.loaded == job.Epoch && lr.gone != job.Epoch:
			// Once an epoch: a rank that stops again under it waits for the fault that made it stop.
			lr.gone = job.Epoch
			lr.does(goes)
			h.orderOnce(lr, job.Epoch, wire.Order{Action: wire.OrderGo, Step: job.Plan.Generation.Step, Generation: job.Plan.Generation})
		}
	}
}

// adopted tells whether a job opens from a durable generation: nobody initialises anything then.
func adopted(job *replica.Job) bool {
	return job.Committed.IsZero() && !job.Durable.IsZero()
}

func (h *Host) orderOnce(lr *localRank, epoch replica.Epoch, o wire.Order) {
	key := orderKey{epoch, o.Action}
	if lr.ordered != key {
		lr.ordered = key
		h.sendOrder(lr, epoch, o)
	}
}

func (h *Host) sendOrder(lr *localRank, epoch replica.Epoch, o wire.Order) {
	if lr.peer != nil {
		lr.peer.Send(wire.RankHeader{Type: wire.MOrder, Epoch: epoch, Incarnation: lr.incarnation}, o.Append(nil)) //nolint:errcheck // a dead peer is Gone
	}
}

// loaded checks a rank's acknowledgement against the plan.
func (h *Host) loaded(lj *localJob, lr *localRank, ev session.Loaded) {
	job := lj.job
	if job.Phase != replica.Planned || job.Plan == nil || ev.Header.Epoch != job.Epoch {
		return // of an epoch closed meanwhile
	}
	group, _ := job.Plan.Source(replica.OfGroup(room.Group(lj.job, lr.rank)))
	private, _ := job.Plan.Source(replica.OfRank(lr.rank))
	if ev.Loaded.ReplicatedRoot != group.Root || ev.Loaded.PrivateRoot != private.Root || ev.Loaded.Generation != job.Plan.Generation {
		h.send(control.Evidence{Job: job.ID, Fault: replica.Fault{Epoch: job.Epoch, Kind: replica.BadDigest, Rank: lr.rank, Incarnation: lr.incarnation,
			Detail: fmt.Sprintf("loaded %v with roots %v and %v; the plan names %v, %v and %v", ev.Loaded.Generation, ev.Loaded.ReplicatedRoot, ev.Loaded.PrivateRoot, job.Plan.Generation, group.Root, private.Root)}})
		return
	}
	lr.loaded = job.Epoch
	h.reconcile(lj)
}

// readAtFence reads a copy that a plan may name, beside the host.
func (h *Host) readAtFence(e *restore.Reading) {
	lj := h.jobs[e.Job]
	h.spawn(func(ctx context.Context) Event {
		e.End(h.verify(ctx, lj, e.Copy.Arena, e.Copy.Place, e.Copy.Held))
		return answer{h.restores, restore.ReadEnded{Of: e}}
	})
}

// restore makes the group's part (with its frozen one) and the rank's private part of the plan lie sealed in the rank's arena, beside the host.
func (h *Host) restore(e *restore.Restore) {
	lj, r := h.jobs[e.Job.ID], e.Rank
	ctx := e.Begin(h.ctx)
	h.spawn(func(context.Context) Event {
		defer e.Stop()
		ev := restore.Ended{Of: e}
		f := fetcher{h: h, lj: lj, job: e.Job, plan: e.Plan, rank: r.Rank, incarnation: r.Incarnation, tier: replica.OwnRAM, missed: &ev.Missed}
		if ev.Slot, ev.Err = f.ensure(ctx, r.Arena, shm.Slot, replica.OfGroup(room.Group(e.Job, r.Rank))); ev.Err == nil {
			ev.Ring, ev.Err = f.ensure(ctx, r.Arena, shm.Ring, replica.OfRank(r.Rank))
		}
		ev.Tier = f.tier
		return answer{h.restores, ev}
	})
}

// fetcher brings parts of one plan into one arena.
type fetcher struct {
	h           *Host
	lj          *localJob
	job         *replica.Job
	plan        *replica.Plan
	rank        replica.Rank // for whom
	incarnation replica.Incarnation
	tier        replica.Tier // the farthest that was needed
	missed      *room.Missed // by the newest fetch
}

// ensure returns the place of a part in arena, fetching it where it is not there.
func (f *fetcher) ensure(ctx context.Context, arena *holding.Arena, kind shm.PlaceKind, part replica.Part) (shm.Place, error) {
	src, ok := f.plan.Source(part)
	if !ok {
		return shm.Place{}, fmt.Errorf("plan of epoch %d has no source for %v", f.plan.Epoch, part)
	}
	have := copyWanted{lj: f.lj, arena: arena, part: part, generation: f.plan.Generation, root: src.Root}
	if !f.h.ask(ctx, &have) {
		return shm.Place{}, f.h.gone(ctx)
	}
	if have.found && f.rehash(ctx, arena, have.at.Place, src) {
		if err := f.frozen(ctx, arena, have.at.Info.FrozenRoot, src, part); err != nil {
			return shm.Place{}, err
		}
		f.h.log.Verified(f.job, f.rank, part, f.plan.Epoch)
		return have.at.Place, nil
	}
	_, place, m, err := f.fetch(ctx, func(replica.Manifest) (*holding.Arena, error) { return arena, nil }, kind, part, src)
	if err != nil {
		return shm.Place{}, fmt.Errorf("fetch %v of generation %v: %w", part, f.plan.Generation, err)
	}
	if err := f.frozen(ctx, arena, m.FrozenRoot, src, part); err != nil {
		return shm.Place{}, err
	}
	f.h.log.Verified(f.job, f.rank, part, f.plan.Epoch)
	return place, nil
}

// copyWanted asks whether an arena holds a part.
type copyWanted struct {
	lj         *localJob
	arena      *holding.Arena
	part       replica.Part
	generation replica.Generation
	root       replica.Digest

	at    holding.Copy
	found bool
}

func (q *copyWanted) serve(*Host) {
	q.at, q.found = q.lj.view().Find(q.arena, q.part, q.generation, q.root)
	q.found = q.found && q.at.Arena == q.arena
}

// rehash reads a sealed place whole: what is in memory already counts only if it is rehashed now (protocol section 6,
// Restore), or was since the fence. Where a bit has flipped the place is given up, so that a good copy can be fetched into one; of
// is the planned part that then can't be had from here.
func (f *fetcher) rehash(ctx context.Context, arena *holding.Arena, p shm.Place, of replica.Source) bool {
	return f.h.wasRead(ctx, f.job.ID, arena, p) || f.h.verify(ctx, f.lj, arena, p, replica.Held{Part: of.Part, Generation: f.plan.Generation, Root: of.Root, Rank: f.rank})
}

// frozen brings the frozen part that a replicated part's root binds.
func (f *fetcher) frozen(ctx context.Context, arena *holding.Arena, root replica.Digest, src replica.Source, part replica.Part) error {
	if part.Kind != replica.ReplicatedPart || root.IsZero() {
		return nil
	}
	frozen := replica.Part{Kind: replica.FrozenPart, Index: part.Index}
	if info, err := arena.Sealed(shm.Place{Kind: shm.Frozen}); err == nil && info.Root == root && f.rehash(ctx, arena, shm.Place{Kind: shm.Frozen}, src) {
		return nil
	}
	src.Part, src.Root = frozen, root
	if _, _, _, err := f.fetch(ctx, func(replica.Manifest) (*holding.Arena, error) { return arena, nil }, shm.Frozen, frozen, src); err != nil {
		return fmt.Errorf("fetch %v: %w", frozen, err)
	}
	return nil
}

// fetch moves a part into a staging place of the arena that into names, from every healthy holder or from disk, and seals it
// under the plan's root. into may take its time; what the plan has lost meanwhile is not staged.
func (f *fetcher) fetch(ctx context.Context, into func(replica.Manifest) (*holding.Arena, error), kind shm.PlaceKind, part replica.Part, src replica.Source) (arena *holding.Arena, place shm.Place, manifest replica.Manifest, err error) {
	began := time.Now()
	f.tier = max(f.tier, min(src.Tier, replica.Disk), replica.PeerRAM)
	w := mover.Wanted{Key: transfer.Key{Cluster: f.h.cluster, Era: f.job.Era, Job: f.job.ID, Epoch: f.plan.Epoch, Part: part, Generation: f.plan.Generation, Root: src.Root, Rank: f.rank, Incarnation: f.incarnation}}
	if src.Tier == replica.Disk {
		w.Disk = f.job.Name
	} else {
		w.Holders = f.donors(ctx, src, part)
		w.Receivers = f.receivers(src, part)
	}
	var staged *holding.Arena
	var staging *shm.Staging
	got, err := f.h.mover.Fetch(ctx, w, func(m replica.Manifest) (mover.Staging, error) {
		var err error
		if arena, err = into(m); err != nil {
			return nil, err
		}
		var s *shm.Staging
		if place, s, err = f.h.stage(ctx, f.lj, arena, m, f); err != nil {
			return nil, err
		}
		staged, staging = arena, s
		f.h.log.Fetching(f.job, f.rank, part, f.plan.Epoch, m.Bytes, w.Holders)
		return s, nil
	})
	*f.missed = room.Missed{Part: part, Nodes: got.Unreached, Took: time.Since(began)}
	f.h.ask(f.h.ctx, &fetchEnd{f, part, src.Root, got, staged, place, staging}) // whatever became of ctx
	if err != nil {
		return nil, place, got.Manifest, err
	}
	f.h.log.Moved(f.job, f.rank, journal.Transferred{Part: part, Epoch: f.plan.Epoch, Tier: max(src.Tier, replica.PeerRAM), Bytes: got.Report.Bytes, Reused: got.Report.Reused, By: got.Report.By, Failed: got.Report.Failed, Took: time.Since(began)})
	return arena, place, got.Manifest, nil
}

// fetchEnd gives back the place of a fetch, and takes in which copies were found bad.
type fetchEnd struct {
	of     *fetcher
	part   replica.Part
	root   replica.Digest
	got    mover.Fetched
	staged *holding.Arena // nil: no place was taken
	place  shm.Place

	staging *shm.Staging
}

func (q *fetchEnd) serve(h *Host) {
	f := q.of
	h.corrupt(f.lj, control.CorruptCopy{Job: f.job.ID, Part: q.part, Generation: f.plan.Generation, Root: q.root}, q.got.Report.Corrupt)
	if q.got.BadDisk {
		h.spoiled(f.lj, &f.lj.badDisk, f.lj.planned(q.part, f.plan.Generation, q.root, f.rank))
	}
	if q.staged != nil {
		q.staged.Unstage(q.place, q.staging)
	}
}

// donors are the holders of the plan in the order in which to ask them, and behind them who has been asked since to fetch the part for others.
func (f *fetcher) donors(ctx context.Context, src replica.Source, part replica.Part) []replica.Holder {
	q := relaysWanted{lj: f.lj, part: part, epoch: f.plan.Epoch}
	all := slices.Clone(src.Holders)
	if !f.h.ask(ctx, &q) {
		return all
	}
	all = recovery.Donors(f.plan, q.nodes, f.h.self.Name, f.rank, src)
	for _, h := range q.holders {
		if h.Node != f.h.self.Name && !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	return all
}

// maxReceivers bounds how many of those that fetch a part as well are asked for what they have: what each has reaches all soon.
const maxReceivers = 4

// receivers are the nodes that fetch a part as well under the plan: for other ranks of its group, or to mirror it. Each rank begins with
// those after it.
func (f *fetcher) receivers(src replica.Source, part replica.Part) (nodes []replica.NodeName) {
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
	groups := f.plan.Layout.Groups
	for i := range len(groups) - 1 {
		r := (int(f.rank) + 1 + i) % len(groups)
		if uint32(groups[r]) == part.Index && r < len(f.plan.Ranks) {
			add(f.plan.Ranks[r].Node)
		}
	}
	if int(part.Index) < len(f.plan.GroupMirrors) {
		for _, n := range f.plan.GroupMirrors[part.Index] {
			add(n)
		}
	}
	return nodes
}

// relaysWanted asks who fetches a part of a plan for others, and where everybody is.
type relaysWanted struct {
	lj    *localJob
	part  replica.Part
	epoch replica.Epoch

	holders []replica.Holder
	nodes   map[replica.NodeName]replica.Node // those registered
}

func (q *relaysWanted) serve(h *Host) {
	q.holders, q.nodes = slices.Clone(q.lj.mirrors.Relays(q.part, q.epoch)), maps.Clone(h.nodes)
}

// admit tells whether the plan is still the one to carry out.
func (f *fetcher) admit() error {
	if job := f.lj.job; job.Phase == replica.Ended || max(f.lj.fenced, job.ClosedEpoch) >= f.plan.Epoch {
		return fmt.Errorf("%w: epoch %d of job %s is closed", transfer.ErrFenced, f.plan.Epoch, job.Name)
	}
	return nil
}

// stage takes a place for a part that is to be written by the daemon, and looks for bytes of it that the arena has already: that
// reads and hashes up to the whole part. It is admitted before and after. Beside the host.
func (h *Host) stage(ctx context.Context, lj *localJob, arena *holding.Arena, manifest replica.Manifest, of admission) (p shm.Place, s *shm.Staging, err error) {
	q := placeWanted{lj: lj, arena: arena, manifest: manifest, admission: of}
	if !h.ask(ctx, &q) {
		return p, nil, h.gone(ctx)
	}
	if q.err != nil {
		return p, nil, q.err
	}
	err = h.reuse(q.staging)
	again := admissionWanted{admission: of}
	if err == nil && !h.ask(ctx, &again) {
		err = h.gone(ctx)
	}
	if err = errors.Join(err, again.err); err != nil {
		q.staging.Abort()
		h.ask(h.ctx, &placeBack{arena, q.place, q.staging})
		return p, nil, err
	}
	return q.place, q.staging, nil
}

// admission judges, on the host's goroutine, whether a part is still to be written here.
type admission interface{ admit() error }

// placeWanted takes a place for what is admitted, admissionWanted asks once more, and placeBack gives the place back.
type (
	placeWanted struct {
		lj       *localJob
		arena    *holding.Arena
		manifest replica.Manifest
		admission

		place   shm.Place
		staging *shm.Staging
		err     error
	}
	admissionWanted struct {
		admission
		err error
	}
	placeBack struct {
		arena   *holding.Arena
		place   shm.Place
		staging *shm.Staging
	}
)

func (q *placeWanted) serve(h *Host) {
	if q.err = q.admit(); q.err == nil {
		q.place, q.staging, q.err = h.takePlace(q.lj, q.arena, q.manifest)
	}
}

func (q *admissionWanted) serve(*Host) { q.err = q.admit() }

func (q *placeBack) serve(*Host) { q.arena.Unstage(q.place, q.staging) }

// takePlace takes a place for a part that is not here and not on its way; where none is free, the oldest one gives way that need not stay
// (lock/budget.go). Where what is on its way holds a place without being needed any more, that is broken off, and whoever brings the part is
// to come again.
func (h *Host) takePlace(lj *localJob, arena *holding.Arena, manifest replica.Manifest) (shm.Place, *shm.Staging, error) {
	kind := holding.KindFor(manifest.Part)
	if in, _ := h.placeStates(lj, arena, arena.Spec().Mirror, true); kind == shm.Slot && manifest.Generation == lj.candidate.Generation && lock.CommittedFirst(in) {
		return shm.Place{}, nil, fmt.Errorf("%v of the candidate: %w: what is committed comes first, and has not come", manifest.Part, transfer.ErrNotYet)
	}
	p, s, err := arena.TakeFor(manifest, func() (giveWay []shm.Place) {
		in, places := h.placeStates(lj, arena, arena.Spec().Mirror, true)
		for _, i := range lock.RetainForStaging(in, kind == shm.Ring, 1) {
			giveWay = append(giveWay, places[i])
		}
		return giveWay
	})
	needed := func(g replica.Generation) bool { return lock.Needed(lj.job, lj.candidate.Generation, g) }
	switch {
	case errors.Is(err, holding.ErrBrought):
		err = fmt.Errorf("%w: %w", transfer.ErrNotYet, err)
	case errors.Is(err, holding.ErrNoPlace) && kind == shm.Slot && needed(manifest.Generation):
		if idle := arena.Unwanted(kind, needed); len(idle) > 0 {
			h.breakOff(arena, idle)
			err = fmt.Errorf("%w: %w", transfer.ErrNotYet, err)
		}
	case errors.Is(err, holding.ErrNoPlace) && kind == shm.Slot && lj.ahead(manifest.Generation):
		err = fmt.Errorf("%w: node %s has not heard that %v is the candidate: %w", transfer.ErrNotYet, h.self.Name, manifest.Generation, err)
	}
	return p, s, err
}

// ahead tells whether a generation may be a candidate that this node has not heard of: its link to the leader may be slower than the pusher's.
func (lj *localJob) ahead(g replica.Generation) bool {
	return lj.job.Phase == replica.Open && g.Epoch == lj.job.Epoch && g.Compare(lj.job.Committed) > 0 && g.Compare(lj.candidate.Generation) > 0
}

// breakOff ends transfers into an arena whose parts nothing needs any more. Chunks under way are waited for, beside the host.
func (h *Host) breakOff(arena *holding.Arena, idle []*shm.Staging) {
	for _, s := range idle {
		h.spawn(func(context.Context) Event {
			s.Abort()
			return brokenOff{arena, s}
		})
	}
}

// brokenOff is the end of a transfer that was broken off: its place is free.
type brokenOff struct {
	arena   *holding.Arena
	staging *shm.Staging
}

// captureNow asks local ranks to capture their live state as generation g: they all stand whole at it, and it would then
// be eligible (protocol section 6, settle). A process that took a rank over since has no state to capture, whatever stands in the
// arena that it got: it has loaded nothing of that epoch.
func (h *Host) captureNow(lj *localJob, g replica.Generation) {
	if lj.job.Phase != replica.Closed {
		return
	}
	for _, lr := range lj.ranks {
		if lr.alive() && lr.stopped() && (planted.Heir || lr.loaded == g.Epoch) && lr.arena.Step().Generation() == g && lr.arena.Good().Generation() == g {
			h.sendOrder(lr, lj.job.ClosedEpoch, wire.Order{Action: wire.OrderCapture, Step: g.Step, Generation: g})
		}
	}
}

// readingWanted asks for the reading of a place since the newest fence.
type readingWanted struct {
	job   replica.JobID
	arena *holding.Arena
	place shm.Place

	reading *restore.Reading // nil: there was none of what lies there now
}

func (q *readingWanted) serve(h *Host) { q.reading = h.restores.Reading(q.job, q.arena, q.place) }

// wasRead waits for a reading of the place that has begun since the fence, and tells whether there was one and it found no fault. Beside
// the host.
func (h *Host) wasRead(ctx context.Context, job replica.JobID, arena *holding.Arena, p shm.Place) bool {
	q := readingWanted{job: job, arena: arena, place: p}
	if !h.ask(ctx, &q) || q.reading == nil {
		return false
	}
	select {
	case <-q.reading.Done():
		return q.reading.Good()
	case <-ctx.Done():
		return false
	}
}
