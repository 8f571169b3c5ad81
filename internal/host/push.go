package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// push is one sealed part on its way to a mirror.
type push struct {
	key     transfer.Key
	reader  *holding.Reader
	awaited bool // by a commit; the line's
}

// pusher streams one rank's parts to one node, in order, over one lane of its own. Its goroutine ends with the job here, or
// with the host.
type pusher struct {
	node   replica.NodeName
	line   *pushLine
	cancel context.CancelFunc
}

// pusherKey says whose parts go where.
type pusherKey struct {
	node replica.NodeName
	job  replica.JobID
	rank replica.Rank
}

// pushKey is one part sent to one mirror; pushState is what is known of it there.
type pushKey struct {
	node       replica.NodeName
	part       replica.Part
	generation replica.Generation
}

type pushState struct {
	sent time.Time
	done bool
}

// pushed is the end of a push.
type pushEnded struct {
	job  replica.JobID
	rank replica.Rank
	key  pushKey
	err  error
}

// pushAgain is how long a mirror's answer may take before the candidate's part is sent again.
const pushAgain = 150 * time.Millisecond

func (h *Host) pushEnded(ev pushEnded) {
	lj := h.jobs[ev.job]
	if lj == nil || lj.ranks[ev.rank] == nil {
		return
	}
	lr := lj.ranks[ev.rank]
	h.log.Pushed(ev.key.part, ev.key.generation, ev.key.node, ev.err)
	h.strained(lj, ev.key, lr.pushed[ev.key].sent, ev.err)
	if ev.err == nil {
		lr.pushed[ev.key] = pushState{lr.pushed[ev.key].sent, true}
	}
	for k := range lr.pushed {
		if k.generation.Step < lj.job.Committed.Step && k.part.Kind != replica.FrozenPart {
			delete(lr.pushed, k)
		}
	}
}

// mirrorAgain sends the parts that a commit waits for to their mirrors once more, acknowledged or not: a push may have met a
// daemon that was away, this daemon may have been when they were sealed, or the mirror has freed what it had.
func (h *Host) mirrorAgain(lj *localJob) {
	if lj.job.Phase != replica.Open || time.Since(lj.candidateAt) < pushAgain || lj.candidate.Generation.Epoch != lj.job.Position.Epoch {
		return
	}
	h.mirrorCandidate(lj, true)
}

// mirrorCandidate sends what is sealed of the candidate to its mirrors: a replicated part that was sealed before its
// generation became the candidate has not been sent yet.
func (h *Host) mirrorCandidate(lj *localJob, again bool) {
	h.mirrorAll(lj, lj.candidate.Generation, again)
}

// scarceAgain is how long after it was told to a node sends again what its mirrors did not take; twice as long each time, up to 32 times.
// What keeps a mirror from it may last as long as the job waits: its node is dead, or has no room.
const scarceAgain = time.Second

// mirrorScarce sends what is sealed here of the generation that the closed job is to resume at to its mirrors, until they have it:
// the push of what was sealed last may have met the fence, and what is for freshness alone was never sent. Where the leader has just
// asked for it, what was acknowledged is sent too: the mirror has lost or freed it since.
func (h *Host) mirrorScarce(lj *localJob, asked bool) {
	g, ok := lj.resumesAt()
	switch {
	case !ok || !asked && time.Now().Before(lj.scarceAt):
		return
	case asked:
		lj.scarceWait = scarceAgain
	default:
		lj.scarceWait = min(2*lj.scarceWait, 32*scarceAgain)
	}
	lj.scarceAt = time.Now().Add(lj.scarceWait)
	h.mirrorAll(lj, g, asked)
}

// resumesAt is the generation that the leader has had mirrored since the epoch was closed.
func (lj *localJob) resumesAt() (replica.Generation, bool) {
	return lj.scarce.Generation, lj.job.Phase == replica.Closed && lj.scarce.Epoch == lj.job.ClosedEpoch
}

func (h *Host) mirrorAll(lj *localJob, g replica.Generation, again bool) {
	for _, lr := range lj.ranks {
		for _, p := range lr.arena.Places() {
			if info, err := lr.arena.Info(p); err == nil && info.Generation == g {
				h.mirror(lj, lr, p, info, again)
			}
		}
	}
}

// endPushers ends what streams parts of a job that has ended.
func (h *Host) endPushers(job replica.JobID) {
	for k, pu := range h.pushers {
		if k.job == job {
			pu.cancel()
			delete(h.pushers, k)
		}
	}
	for k := range h.strains {
		if k.job == job {
			delete(h.strains, k)
		}
	}
}

// mirrorsOf names the nodes that mirror what lies in a kind of place of a rank's arena. A group's part is sent by its lowest
// rank alone.
func (lj *localJob) mirrorsOf(k shm.PlaceKind, r replica.Rank) []replica.NodeName {
	job, g := lj.job, lj.group(r)
	switch {
	case k == shm.Ring && int(r) < len(job.Mirrors):
		return job.Mirrors[r]
	case k == shm.Slot && int(g) < len(job.GroupMirrors) && lj.speaker(g) == r:
		return job.GroupMirrors[g]
	}
	return nil
}

// speaker is the lowest rank of a group.
func (lj *localJob) speaker(g replica.GroupID) replica.Rank {
	for r, have := range lj.job.Layout.Groups {
		if have == g {
			return replica.Rank(r)
		}
	}
	return 0
}

// mirror sends a just sealed part to the nodes that mirror it: private parts every step, before the update they belong to
// ends; replicated parts of a group that has too few nodes of its own, with the frozen part that they bind.
func (h *Host) mirror(lj *localJob, lr *localRank, p shm.Place, info shm.Info, again bool) {
	if at, scarce := lj.resumesAt(); p.Kind == shm.Slot && lj.candidate.N != 0 && info.Generation != lj.candidate.Generation && (!scarce || info.Generation != at) {
		return // for freshness: only a candidate is worth the bytes, and the slot that a slow mirror would hold
	}
	for _, node := range lj.mirrorsOf(p.Kind, lr.rank) {
		if node == h.self.Name {
			continue
		}
		h.pushTo(node, lj, lr, p, info, again)
		if frozen := (shm.Place{Kind: shm.Frozen}); p.Kind == shm.Slot && !info.FrozenRoot.IsZero() {
			if fi, err := lr.arena.Info(frozen); err == nil {
				h.pushTo(node, lj, lr, frozen, fi, again)
			}
		}
	}
}

func (h *Host) pushTo(node replica.NodeName, lj *localJob, lr *localRank, p shm.Place, info shm.Info, again bool) {
	pk := pushKey{node, lj.part(p.Kind, lr.rank), info.Generation}
	if st := lr.pushed[pk]; st.done && !again || time.Since(st.sent) < pushAgain {
		return
	}
	lr.pushed[pk] = pushState{sent: time.Now()}
	k := transfer.Key{Cluster: h.cluster, Era: lj.job.Era, Job: lj.job.ID, Epoch: lj.job.Epoch, Part: pk.part, Generation: info.Generation, Root: info.Root, Rank: lr.rank, Incarnation: lr.incarnation}
	r, err := h.reader(lj, holding.Copy{Arena: lr.arena, Place: p, Info: info, Held: replica.Held{Part: k.Part, Rank: lr.rank}})
	if err != nil {
		return
	}
	pu := h.pushers[pusherKey{node, lj.job.ID, lr.rank}]
	if pu == nil {
		ctx, cancel := context.WithCancel(h.ctx)
		pu = &pusher{node: node, line: newPushLine(), cancel: cancel}
		h.pushers[pusherKey{node, lj.job.ID, lr.rank}] = pu
		h.work.Go(func() { defer cancel(); h.runPusher(ctx, pu) })
	}
	for _, p := range pu.line.put(push{key: k, reader: r}, lj.awaits) {
		p.reader.Drop()
	}
}

func (h *Host) runPusher(ctx context.Context, pu *pusher) {
	var lane transfer.Lane
	defer func() {
		if lane != nil {
			lane.Close()
		}
		for p, ok := pu.line.take(); ok; p, ok = pu.line.take() {
			p.reader.Close()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pu.line.more:
		}
		for p, ok := pu.line.take(); ok && ctx.Err() == nil; p, ok = pu.line.take() {
			err := errors.New("not tried")
			for try := 0; try < 2 && err != nil && ctx.Err() == nil; try++ { // a lane that broke since the last step is opened anew
				if lane == nil {
					if lane, err = h.dialLane(ctx, pu.node); err != nil {
						lane = nil
						break
					}
				}
				if err = h.pushOne(ctx, lane, p); err != nil && !errors.Is(err, transfer.ErrFenced) && !errors.Is(err, transfer.ErrNotYet) {
					lane.Close()
					lane = nil
				}
			}
			p.reader.Close()
			if err != nil && ctx.Err() == nil {
				h.log.PushFailed(p.key.Part, p.key.Generation, pu.node, err)
			}
			h.Post(pushEnded{p.key.Job, p.key.Rank, pushKey{pu.node, p.key.Part, p.key.Generation}, err})
		}
	}
}

func (h *Host) pushOne(ctx context.Context, lane transfer.Lane, p push) error {
	ctx, cancel := context.WithTimeout(ctx, pushLimit(p.reader.Manifest().Bytes))
	defer cancel()
	return transfer.Push(ctx, lane, p.key, p.reader)
}

// pushSlowest is the pace in bytes a second below which a push is given up: what waits behind it grows old meanwhile.
const pushSlowest = 32 << 20

// pushLimit is how long a push of so many bytes may take. With one limit for all, a large shard would never reach its mirror, and
// nothing would be committed any more.
func pushLimit(bytes uint64) time.Duration {
	return 3*time.Second + time.Duration(float64(bytes)/pushSlowest*float64(time.Second))
}

func (h *Host) dialLane(ctx context.Context, node replica.NodeName) (transfer.Lane, error) {
	var n replica.Node
	var ok bool
	if !h.do(ctx, func() { n, ok = h.nodes[node] }) {
		return nil, context.Cause(ctx)
	}
	if !ok {
		return nil, fmt.Errorf("node %s is not registered", node)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return h.dial(ctx, n.Addr, node)
}

// sources makes a transfer source of each holder; this node's own other arenas are read over a pipe. Those that can't be dialled are noted.
func (h *Host) sources(holders []replica.Holder, missed *misses) []transfer.Source {
	var out []transfer.Source
	for _, holder := range holders {
		out = append(out, transfer.Source{Node: holder.Node, Dial: func(ctx context.Context) (transfer.Lane, error) {
			if holder.Node == h.self.Name {
				return &localLane{h}, nil
			}
			l, err := h.dialLane(ctx, holder.Node)
			if err != nil {
				missed.add(ctx, holder.Node)
			}
			return l, err
		}})
	}
	return out
}
