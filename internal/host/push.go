package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// pushKey is one part sent to one mirror; pushState is what is known of it there.
type pushKey struct {
	node       replica.NodeName
	part       replica.Part
	generation replica.Generation
}

type pushState struct {
	sent time.Time // when it was given to the mover
	done bool
}

// pushEnded is the end of a push.
type pushEnded mover.Pushed

// pushAgain is how long a mirror's answer may take before the candidate's part is sent again.
const pushAgain = 150 * time.Millisecond

func (h *Host) pushEnded(ev pushEnded) {
	if ev.Err != nil && !errors.Is(ev.Err, context.Canceled) && !errors.Is(ev.Err, mover.ErrSuperseded) {
		h.log.PushFailed(ev.Key.Part, ev.Key.Generation, ev.Line.Node, ev.Err)
	}
	lj := h.jobs[ev.Key.Job]
	if lj == nil || lj.ranks[ev.Key.Rank] == nil {
		return
	}
	lr, key := lj.ranks[ev.Key.Rank], pushKey{ev.Line.Node, ev.Key.Part, ev.Key.Generation}
	h.log.Pushed(key.part, key.generation, key.node, time.Since(lr.pushed[key].sent), ev.Err)
	h.strained(lj, key, lr.pushed[key].sent, ev.Err)
	switch {
	case ev.Err == nil:
		lr.pushed[key] = pushState{lr.pushed[key].sent, true}
	case errors.Is(ev.Err, mover.ErrSuperseded):
		delete(lr.pushed, key)
		if g, scarce := lj.resumesAt(); scarce && g == key.generation { // it gave way to another part, and is to follow that
			if soon := time.Now().Add(pushAgain); soon.Before(lj.scarceAt) {
				lj.scarceAt = soon
			}
		}
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

// refill sends what is committed to mirrors that never got it from here: a mirror that was moved off a lost node has nothing until the
// next commit, which may be minutes away. What is sealed of the candidate makes up for that, and is sent anyway. After a resume that did
// not wait for the mirrors they fetch it themselves.
func (h *Host) refill(lj *localJob) {
	if lj.job.Phase != replica.Open || room.Spreads(lj.job) || lj.job.Committed.IsZero() {
		return
	}
	for _, lr := range lj.ranks {
		for _, k := range []shm.PlaceKind{shm.Slot, shm.Ring} {
			p, info, committed := lr.arena.At(k, lj.job.Committed)
			if _, _, next := lr.arena.At(k, lj.candidate.Generation); committed && !next {
				h.mirror(lj, lr, p, info, false)
			}
		}
	}
}

// prunePushes ends what is on its way to nodes that are not to mirror it any more: they would refuse it for half a minute, in which the slot
// that it holds is lacking for what is to be committed.
func (h *Host) prunePushes(lj *localJob, was *replica.Job) {
	same := func(a, b [][]replica.NodeName) bool { return slices.EqualFunc(a, b, slices.Equal) }
	if same(was.Mirrors, lj.job.Mirrors) && same(was.GroupMirrors, lj.job.GroupMirrors) {
		return
	}
	wanted := func(l mover.Line, k transfer.Key) bool {
		return slices.Contains(room.MirrorsOfPart(lj.job, k.Part, l.Rank), l.Node)
	}
	for _, p := range h.mover.Prune(lj.job.ID, wanted) {
		drop(p.From)
	}
	h.retain(lj)
	for _, lr := range lj.ranks { // should such a node be a mirror again, it has freed what it had
		maps.DeleteFunc(lr.pushed, func(k pushKey, _ pushState) bool {
			return !wanted(mover.Line{Node: k.node, Rank: lr.rank}, transfer.Key{Part: k.part})
		})
	}
}

// pruneOld ends pushes of replicated parts that nothing waits for any more. Each holds a slot, and of two there may be no other for the
// candidate.
func (h *Host) pruneOld(lj *localJob) {
	for _, p := range h.mover.Prune(lj.job.ID, func(_ mover.Line, k transfer.Key) bool {
		return k.Part.Kind != replica.ReplicatedPart || lock.Needed(lj.job, lj.candidate.Generation, k.Generation)
	}) {
		drop(p.From)
	}
}

// endPushes ends the pushes of parts of a job that has ended.
func (h *Host) endPushes(job replica.JobID) {
	h.mover.EndPushes(job)
	for k := range h.strains {
		if k.job == job {
			delete(h.strains, k)
		}
	}
}

// mirror sends a just sealed part to the nodes that mirror it: private parts every step, before the update they belong to
// ends; replicated parts of a group that has too few nodes of its own, with the frozen part that they bind.
func (h *Host) mirror(lj *localJob, lr *localRank, p shm.Place, info shm.Info, again bool) {
	at, scarce := lj.resumesAt()
	if g := info.Generation; p.Kind == shm.Slot && lj.candidate.N != 0 && g != lj.candidate.Generation && g != lj.job.Committed && (!scarce || g != at) {
		return // for freshness: only a candidate is worth the bytes, and the slot that a slow mirror would hold
	}
	for _, node := range room.MirrorsOf(lj.job, p.Kind, lr.rank) {
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
	pk := pushKey{node, room.Part(lj.job, p.Kind, lr.rank), info.Generation}
	was, sent := lr.pushed[pk]
	if was.done && !again || time.Since(was.sent) < pushAgain {
		return
	}
	lr.pushed[pk] = pushState{sent: time.Now()}
	k := transfer.Key{Cluster: h.cluster, Era: lj.job.Era, Job: lj.job.ID, Epoch: lj.job.Epoch, Part: pk.part, Generation: info.Generation, Root: info.Root, Rank: lr.rank, Incarnation: lr.incarnation}
	r, err := h.reader(lj, holding.Copy{Arena: lr.arena, Place: p, Info: info, Held: replica.Held{Part: k.Part, Rank: lr.rank}})
	if err != nil {
		return
	}
	dropped := h.mover.Push(mover.Line{Node: node, Job: lj.job.ID, Rank: lr.rank}, mover.Push{Key: k, From: h.pace(r, lj.pushedFor(info.Generation))}, lj.awaits)
	for _, p := range dropped {
		drop(p.From)
		switch {
		case p.Key != k:
			delete(lr.pushed, pushKey{node, p.Key.Part, p.Key.Generation}) // should it be the candidate later
		case sent:
			lr.pushed[pk] = was // it is on its way since then
		}
	}
	if len(dropped) > 0 {
		h.retainArena(lj, lr.arena, lr)
	}
}

// awaits tells whether the commit of the candidate, or a recovery, waits for a part.
func (lj *localJob) awaits(k transfer.Key) bool {
	at, scarce := lj.resumesAt()
	return k.Part.Kind == replica.FrozenPart || k.Generation == lj.candidate.Generation || scarce && k.Generation == at
}

// dialLane opens a lane to a registered node, at one of its addresses or, where none is named, by all of them. Beside the host.
func (h *Host) dialLane(ctx context.Context, node replica.NodeName, at string, over transfer.Transport) (transfer.Lane, error) {
	q := nodeWanted{name: node}
	if !h.ask(ctx, &q) {
		return nil, h.gone(ctx)
	}
	if !q.registered {
		return nil, fmt.Errorf("node %s is not registered", node)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if at != "" {
		return h.dial(ctx, []string{at}, node, over)
	}
	return h.dial(ctx, q.node.Ways(), node, over)
}

// waysTo are the addresses of a registered node in the order in which to use them. Beside the host.
func (h *Host) waysTo(ctx context.Context, node replica.NodeName) []string {
	q := nodeWanted{name: node}
	if !h.ask(ctx, &q) || !q.registered {
		return nil
	}
	return h.ways(q.node)
}

// nodeWanted asks where a node is.
type nodeWanted struct {
	name replica.NodeName

	node       replica.Node
	registered bool
}

func (q *nodeWanted) serve(h *Host) { q.node, q.registered = h.nodes[q.name] }
