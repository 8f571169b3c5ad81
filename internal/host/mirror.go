package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// mirror holds parts of ranks of other nodes, in an arena of the daemon's own: a rank's private parts, or a group's
// replicated ones. Owned by the host.
type mirror struct {
	part  replica.Part // OfRank or OfGroup
	rank  replica.Rank // the producer
	arena *holding.Arena
}

// making is a mirror's arena on its way: reserved, then parked. Several may wait for it. Owned by the host, but for done.
type making struct {
	key   replica.Part
	rank  replica.Rank
	kind  replica.PartKind
	of    replica.Digest // its geometry
	arena *holding.Arena // once it is reserved
	err   error          // to be read once done is closed
	done  chan struct{}
	began time.Time
	long  time.Duration
}

// makingLong is from when on the node whose part waits for an arena of so many bytes hears of a failure, and no "not yet": it would say that for
// ever where the keeper hangs, and no other node would be asked to mirror the part. On a busy machine memory was reserved at 0.7 GB a second;
// 256 MiB are allowed for.
func makingLong(bytes uint64) time.Duration {
	return 10*time.Second + time.Duration(bytes>>28)*time.Second
}

// late is the error of an arena that has not been made in time; nil: it may still be.
func (mk *making) late(now time.Time) error {
	if took := now.Sub(mk.began); took > mk.long {
		return fmt.Errorf("mirror of %v: its arena is not made after %v", mk.key, took.Round(time.Second))
	}
	return nil
}

// mirrorMade is the end of reserving a mirror's arena, mirrorParked that of parking it.
type (
	mirrorMade struct {
		lj    *localJob
		of    *making
		arena *shm.Arena
		err   error
	}
	mirrorParked struct {
		lj *localJob
		of *making
	}
)

// mirrorArena returns the arena for a mirrored part, made to its size, once it is with the keeper and on the list. Beside the host.
func (h *Host) mirrorArena(ctx context.Context, lj *localJob, rank replica.Rank, man replica.Manifest) (*holding.Arena, error) {
	for {
		q := mirrorWanted{lj: lj, rank: rank, manifest: man}
		if !h.ask(ctx, &q) {
			return nil, h.gone(ctx)
		}
		if q.err != nil || q.arena != nil {
			return q.arena, q.err
		}
		select {
		case <-q.making.done:
		case <-ctx.Done():
			return nil, cmp.Or(q.making.late(time.Now()), context.Cause(ctx))
		case <-h.ended:
			return nil, context.Canceled
		}
		if q.making.err != nil {
			return nil, q.making.err
		}
	}
}

// mirrorWanted asks for the arena of a mirrored part: it is there, or on its way.
type mirrorWanted struct {
	lj       *localJob
	rank     replica.Rank
	manifest replica.Manifest

	arena  *holding.Arena
	making *making
	err    error
}

func (q *mirrorWanted) serve(h *Host) {
	q.arena, q.making, q.err = h.findMirror(q.lj, q.rank, q.manifest)
}

// gone says why ask has refused.
func (h *Host) gone(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return context.Canceled
}

// findMirror returns the arena for a mirrored part, or else what makes it: begun now, unless it is on its way.
func (h *Host) findMirror(lj *localJob, rank replica.Rank, man replica.Manifest) (*holding.Arena, *making, error) {
	key := man.Part
	if key.Kind == replica.FrozenPart {
		key.Kind = replica.ReplicatedPart // it lies beside the parts that bind it
	}
	mi := lj.mirrors[key]
	if mi != nil && mi.arena.Header().Geometry[man.Part.Kind] == man.Geometry {
		return mi.arena, nil, nil
	}
	if lj.job.Phase == replica.Ended {
		return nil, nil, fmt.Errorf("mirror of %v: %w: the job has ended", man.Part, transfer.ErrFenced)
	}
	if man.Part.Kind == replica.FrozenPart {
		return nil, nil, fmt.Errorf("mirror of %v: %w: the replicated part comes first", man.Part, transfer.ErrNotYet)
	}
	if man.Part.Kind == replica.PrivatePart && man.Bytes > privateCap(lj.job) {
		return nil, nil, fmt.Errorf("private part of rank %d has %d bytes, the cap is %d", rank, man.Bytes, privateCap(lj.job))
	}
	if err := room.Fits(lj.job, man); err != nil {
		return nil, nil, err
	}
	if mk := lj.making[key]; mk != nil {
		if mk.kind != man.Part.Kind || mk.of != man.Geometry {
			if err := mk.late(time.Now()); err != nil {
				return nil, nil, err
			}
			return nil, nil, fmt.Errorf("mirror of %v: %w: an arena of another geometry is on its way", man.Part, transfer.ErrNotYet)
		}
		return nil, mk, nil
	}
	spec, err := (shm.Spec{Cluster: h.cluster, Era: h.era, Job: lj.job.ID, Rank: rank, ChunkBytes: chunkBytes(lj.job), Slots: slotsOf(lj.job), Margin: uint64(h.cfg.MemoryMargin)}).MirrorOf(man.Part.Kind, man.Regions)
	if err != nil {
		return nil, nil, fmt.Errorf("mirror of %v: %w", man.Part, err)
	}
	if shm.GeometryDigest(spec.Geometry, man.Part.Kind) != man.Geometry {
		return nil, nil, fmt.Errorf("mirror of %v: the manifest's regions do not make its geometry", man.Part)
	}
	mk := &making{key: key, rank: rank, kind: man.Part.Kind, of: man.Geometry, done: make(chan struct{}), began: time.Now(), long: makingLong(uint64(spec.Slots) * man.Bytes)}
	lj.making[key] = mk
	h.work.Go(func() {
		a, err := h.create(spec)
		h.Post(mirrorMade{lj, mk, a, err})
	})
	return nil, mk, nil
}

func (h *Host) mirrorMade(ev mirrorMade) {
	lj, mk := ev.lj, ev.of
	switch {
	case ev.err != nil:
		mk.end(lj, fmt.Errorf("mirror of %v: %w", mk.key, ev.err))
	case lj.job.Phase == replica.Ended:
		h.unmap(ev.arena)
		mk.end(lj, fmt.Errorf("mirror of %v: %w: the job has ended", mk.key, transfer.ErrFenced))
	default:
		mk.arena = holding.New(ev.arena, holding.MirrorKey(lj.job.ID, mk.rank), h.unmap)
		h.custody.Put(mk.arena.Key(), mk.arena.File())
		h.saveArenas()
		h.custody.After(func() { h.Post(mirrorParked{lj, mk}) })
	}
}

func (h *Host) mirrorParked(ev mirrorParked) {
	lj, mk := ev.lj, ev.of
	if lj.job.Phase == replica.Ended {
		mk.end(lj, fmt.Errorf("mirror of %v: %w: the job has ended", mk.key, transfer.ErrFenced))
		h.forget(mk.arena)
		return
	}
	old := lj.mirrors[mk.key]
	lj.mirrors[mk.key] = &mirror{mk.key, mk.rank, mk.arena}
	h.reserve(mk.arena)
	mk.end(lj, nil)
	if old != nil {
		h.forget(old.arena)
	}
}

func (mk *making) end(lj *localJob, err error) {
	delete(lj.making, mk.key)
	mk.err = err
	close(mk.done)
}

// mirrored is a part that lies sealed in a mirror arena.
type mirrored struct {
	job replica.JobID
}

func (h *Host) mirrored(ev mirrored) {
	if lj := h.jobs[ev.job]; lj != nil {
		if lj.job.Phase == replica.Open && lj.job.Previous == nil {
			h.answerCandidate(lj)
			h.retain(lj)
		} else {
			h.reconcile(lj)
		}
	}
}

// fetchMirrors fetches the parts of T that are to be mirrored here: before Resume, and after one that did not wait for them.
func (h *Host) fetchMirrors(lj *localJob) {
	job := lj.job
	if !room.Spreads(lj.job) || job.Plan == nil || job.Plan.Epoch != job.Epoch {
		return
	}
	for r, nodes := range job.Mirrors {
		if slices.Contains(nodes, h.self.Name) {
			h.fetchMirror(lj, replica.OfRank(replica.Rank(r)), replica.Rank(r))
		}
	}
	for g, nodes := range job.GroupMirrors {
		if slices.Contains(nodes, h.self.Name) {
			h.fetchMirror(lj, replica.OfGroup(replica.GroupID(g)), room.Speaker(lj.job, replica.GroupID(g)))
		}
	}
	h.fetchRelayed(lj)
}

// fetchMirror starts fetching one part, unless it is here, on its way, or just failed to come.
func (h *Host) fetchMirror(lj *localJob, part replica.Part, rank replica.Rank) {
	job, plan := lj.job, lj.job.Plan
	src, ok := plan.Source(part)
	if !ok || int(rank) >= len(plan.Ranks) {
		return
	}
	if at, held := lj.view().Find(nil, part, plan.Generation, src.Root); held && at.Whole() {
		return
	}
	if mi := lj.mirrors[part]; mi != nil && !planted.Twice && mi.arena.Standing(holding.KindFor(part), plan.Generation, src.Root) == holding.Coming {
		return // its maker brings it. Its end, whatever that is, looks here again
	}
	if job.Phase == replica.Open { // whoever has loaded it has it too
		for _, p := range job.Parts {
			if p.Part == part {
				src.Holders, src.Tier = p.Holders, replica.PeerRAM
			}
		}
	}
	if st := lj.fetching[part]; st.running || st.epoch == plan.Epoch && time.Now().Before(st.retryAt) {
		return
	}
	h.startFetch(lj, plan, src, rank)
}

// startFetch fetches a part of a plan into the arena that mirrors it here.
func (h *Host) startFetch(lj *localJob, plan *replica.Plan, src replica.Source, rank replica.Rank) {
	job, part := lj.job, src.Part
	tries := 0
	if was := lj.fetching[part]; was.epoch == plan.Epoch {
		tries = was.tries
	}
	lj.fetching[part] = fetchState{epoch: plan.Epoch, running: true, tries: tries}
	h.spawn(func(ctx context.Context) Event {
		f := fetcher{h: h, lj: lj, job: job, plan: plan, rank: rank, incarnation: plan.Ranks[rank].Incarnation, missed: new(missed)}
		into := func(man replica.Manifest) (*holding.Arena, error) { return h.mirrorArena(ctx, lj, rank, man) }
		arena, _, man, err := f.fetch(ctx, into, holding.KindFor(part), part, src)
		if err == nil {
			err = f.frozen(ctx, arena, man.FrozenRoot, src, part)
		}
		return mirrorFetched{mirrored{job.ID}, part, plan.Epoch, rank, *f.missed, err}
	})
}

// fetchState is how far a mirror's fetch for a plan is.
type fetchState struct {
	epoch   replica.Epoch
	running bool
	retryAt time.Time
	tries   int // that failed
}

// mirrorFetched is the end of fetching a part to mirror.
type mirrorFetched struct {
	mirrored
	part   replica.Part
	epoch  replica.Epoch
	rank   replica.Rank // for whom
	missed missed
	err    error
}

func (h *Host) mirrorFetched(ev mirrorFetched) {
	lj := h.jobs[ev.job]
	if lj == nil {
		return
	}
	st := fetchState{epoch: ev.epoch, retryAt: time.Now().Add(restoreRetry)}
	if was := lj.fetching[ev.part]; was.epoch == ev.epoch {
		st.tries = was.tries
	}
	defer func() { lj.fetching[ev.part] = st }()
	if ev.err != nil && lj.job.Epoch == ev.epoch && !errors.Is(ev.err, context.Canceled) && !errors.Is(ev.err, holding.ErrBrought) {
		st.tries++
		h.log.Retried("mirror", fmt.Sprintf("%v, epoch %d", ev.part, ev.epoch), ev.err.Error())
		h.fetchFailed(lj, ev.epoch, ev.rank, st.tries, ev.missed, ev.err)
	}
	h.mirrored(ev.mirrored)
}
