package host

import (
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// arenaReady is the end of making an arena.
type arenaReady struct {
	attaching *attaching
	job       replica.JobID
	arena     *shm.Arena
	err       error
}

// arenaParked says that an arena is with the keeper, and on the list with the process that is to have it: it may be handed out.
type arenaParked struct {
	attaching *attaching
	job       replica.JobID
	fresh     bool // made for this process; else its dead predecessor's, and still in its place
}

// makeArena passes on the arena of the rank's dead predecessor where it fits, and makes a fresh one beside the host where not.
func (h *Host) makeArena(lj *localJob, a *attaching) {
	rank := a.hello.Rank
	if lr := lj.ranks[rank]; lr != nil {
		if lr.arena.Fits(a.geometry) {
			h.park(lj, a, lr.arena, false)
			return
		}
		lj.retired = append(lj.retired, lr.arena)
		delete(lj.ranks, rank)
	}
	for _, ref := range lj.retired { // retired since the view of this very claim came before its answer
		if !ref.Spec().Mirror && ref.Spec().Rank == rank && ref.Fits(a.geometry) && !h.processes.Alive(ref.Process.PID, ref.Process.Start) {
			h.park(lj, a, ref, false)
			return
		}
	}
	a.creating = true
	job := lj.job
	spec := h.arenaSpec(job, a)
	h.launchers.Of(lj).Memory(spec)
	ev := arenaReady{attaching: a, job: job.ID}
	h.work.Go(func() {
		ev.arena, ev.err = h.create(spec)
		ev.err = launchers.FewerSlots(spec, ev.err)
		h.Post(ev)
	})
}

func (h *Host) arenaReady(ev arenaReady) {
	a, lj := ev.attaching, h.jobs[ev.job]
	a.creating = false
	if ev.err != nil {
		if h.attaching[a.peer.ID()] != a || lj == nil {
			return
		}
		h.send(control.Evidence{Job: ev.job, Fault: replica.Fault{Epoch: lj.job.Epoch, Kind: replica.ProcessDead, Rank: a.hello.Rank, Incarnation: a.granted, Detail: ev.err.Error()}})
		a.granted = 0
		if kind := want.Of(ev.err); kind != want.Nothing { // it asks for the rank again once that is free
			h.launchers.Of(lj).Short(a.hello.Rank, kind, ev.err.Error(), time.Now())
			return
		}
		h.refuse(a, a.attach, wire.CodeSystem, ev.err.Error())
		return
	}
	if h.attaching[a.peer.ID()] != a || lj == nil {
		h.unmap(ev.arena) // never handed out
		return
	}
	ref := holding.New(ev.arena, holding.RankKey(ev.job, a.hello.Rank, a.granted), h.unmap)
	h.custody.Put(ref.Key(), ref.File())
	h.park(lj, a, ref, true)
}

// lacksRoom tells whether this node is short of what a process's arena takes. It waits then, and has claimed nothing: other nodes may be asked.
func (h *Host) lacksRoom(lj *localJob, a *attaching) bool {
	if !h.launchers.Of(lj).MayTry(time.Now()) {
		return true
	}
	err := want.Descriptor(arenaDescriptors)
	if err != nil {
		err = fmt.Errorf("%d descriptors for an arena: %w", arenaDescriptors, err)
	} else if !lj.inherits(a) {
		spec := h.arenaSpec(lj.job, a)
		err = launchers.FewerSlots(spec, h.room(spec))
	}
	if kind := want.Of(err); kind != want.Nothing {
		h.launchers.Of(lj).Short(a.hello.Rank, kind, err.Error(), time.Now())
		return true
	}
	return false // any other error comes again when the arena is made
}

// arenaDescriptors is how many descriptors the way of an arena to its process takes at most: its own, those of what is read meanwhile, and
// duplicates on their way to the keeper and the process.
const arenaDescriptors = 4

// inherits tells whether a predecessor's arena lies here that a process can have.
func (lj *localJob) inherits(a *attaching) bool {
	if lr := lj.ranks[a.hello.Rank]; lr != nil && lr.arena.Fits(a.geometry) {
		return true
	}
	return slices.ContainsFunc(lj.retired, func(ref *holding.Arena) bool { return ref.Spec().Rank == a.hello.Rank && ref.Fits(a.geometry) })
}

func (h *Host) arenaSpec(job *replica.Job, a *attaching) shm.Spec {
	return shm.Spec{Cluster: h.cluster, Era: h.era, Job: job.ID, Rank: a.hello.Rank, Geometry: a.geometry, ChunkBytes: room.ChunkBytes(job), Slots: room.Slots(job), Margin: uint64(h.cfg.MemoryMargin)}
}

// retryShort has those try again who wait here for something that this node was short of.
func (h *Host) retryShort() {
	for over := range h.launchers.Retries(time.Now()) {
		if over {
			for _, lj := range h.jobs {
				h.report(lj)
			}
		}
		h.serveAttaching()
	}
}

// park has the arena of a process put where it outlives the daemon. The list on disk names the process before that has the
// arena: a daemon that starts again must know whom to wait for. A predecessor's arena stays in its place meanwhile, and counts there.
func (h *Host) park(lj *localJob, a *attaching, ref *holding.Arena, fresh bool) {
	a.creating, a.arena = true, ref
	ref.Process = holding.Process{PID: a.peer.PID(), Start: a.peer.StartTime(), Proven: true}
	ref.SetOwner(a.granted, uint64(a.peer.PID()), a.peer.StartTime())
	h.saveArenas()
	ev := arenaParked{a, lj.job.ID, fresh}
	h.custody.After(func() { h.Post(ev) })
}

func (h *Host) arenaParked(ev arenaParked) {
	a, lj, ref := ev.attaching, h.jobs[ev.job], ev.attaching.arena
	a.creating, a.arena = false, nil
	there := lj != nil && lj.holdsDead(ref)
	switch {
	case h.attaching[a.peer.ID()] == a && lj != nil && (ev.fresh || there):
		h.handOut(lj, a, ref)
	case ev.fresh:
		h.forget(ref) // the process is gone
	case h.attaching[a.peer.ID()] == a && lj != nil && lj.job.Phase != replica.Ended:
		h.makeArena(lj, a) // another job's rules gave the predecessor's up
	default:
		h.saveArenas() // its place is its predecessor's again
		h.serveAttaching()
	}
}

// holdsDead tells whether an arena lies here as that of a dead process.
func (lj *localJob) holdsDead(ref *holding.Arena) bool {
	lr := lj.ranks[ref.Spec().Rank]
	return lr != nil && lr.arena == ref && !lr.alive() || slices.Contains(lj.retired, ref)
}

// handOut gives a parked arena to its process.
func (h *Host) handOut(lj *localJob, a *attaching, ref *holding.Arena) {
	delete(h.attaching, a.peer.ID())
	rank := a.hello.Rank
	lj.retired = slices.DeleteFunc(lj.retired, func(r *holding.Arena) bool { return r == ref })
	if old := lj.ranks[rank]; old != nil && old.arena != ref {
		lj.retired = append(lj.retired, old.arena)
	}
	lr := &localRank{rank: rank, incarnation: a.granted, arena: ref, peer: a.peer, pid: a.peer.PID(), start: a.peer.StartTime(), sealedAt: map[replica.Generation]time.Time{}}
	lj.ranks[rank] = lr
	h.launchers.Attached(lj.job.Name, rank)
	h.launchers.Of(lj).Found()
	ref.RaiseFence(max(lj.fenced, lj.job.ClosedEpoch))
	ref.SetCommitted(lj.job.Position)
	ref.SetCandidate(lj.candidate.Position)
	ref.SetCadence(lock.Cadence(lj.job))
	h.answerAttach(lj, lr, a.attach)
	h.saveArenas() // it is handed out
	h.reserve(ref)
	h.log.Claimed(lj.job, lr.rank, lr.incarnation, h.self.Name, lr.pid)
	if err := h.sessions.Watch(lr.pid, lr.start); err != nil {
		h.log.Failed("watch", ref.Key(), err.Error())
	}
	h.reconcile(lj)
}

// answerAttach gives a rank its arena.
func (h *Host) answerAttach(lj *localJob, lr *localRank, request uint32) {
	head := wire.RankHeader{Type: wire.MAttached, Request: request, Epoch: lj.job.Epoch, Incarnation: lr.incarnation}
	hd := lr.arena.Header()
	body := wire.Attached{ArenaBytes: hd.ArenaBytes, Incarnation: lr.incarnation, Slots: hd.Slots, Ring: hd.Ring, Fence: lj.fenced, Job: lj.job.ID}.Append(nil)
	if err := lr.peer.SendFile(head, body, lr.arena.File()); err != nil {
		h.log.Failed("attach", lr.arena.Key(), err.Error())
		if kind := want.Of(err); kind != want.Nothing {
			h.launchers.Of(lj).Short(lr.rank, kind, err.Error(), time.Now())
			lr.peer.Refuse(request, wire.CodeAgain, err.Error())
		}
	}
}

// reattach takes back a rank whose daemon was away.
func (h *Host) reattach(ev session.Hello) {
	defer ev.File.Close()
	for _, lj := range h.jobs {
		for _, lr := range lj.ranks {
			if lr.pid == ev.Peer.PID() && lr.start == ev.Peer.StartTime() && lr.rank == ev.Hello.Rank && lj.job.Name == ev.Hello.Job {
				h.attachAgain(lj, lr, ev)
				return
			}
		}
	}
	if ref, ok := h.adoption.Back(ev.Peer, ev.Hello.Rank); ok {
		inc, _, _ := ref.Owner()
		h.attached(ev, ref, inc, 0)
		return
	}
	if h.adoptOffered(ev) {
		return
	}
	ev.Peer.Refuse(ev.Header.Request, wire.CodeStopped, fmt.Sprintf("no arena of job %q, rank %d belongs to process %d here: the rank was taken over or the job has ended", ev.Hello.Job, ev.Hello.Rank, ev.Peer.PID()))
}

func (h *Host) attachAgain(lj *localJob, lr *localRank, ev session.Hello) {
	lr.peer, lr.ordered = ev.Peer, orderKey{}
	lr.does(returns)
	if lr.unproven {
		lr.unproven = false
		h.saveArenas()
	}
	h.attached(ev, lr.arena, lr.incarnation, lj.job.Epoch)
	h.log.Reattached(lj.job, lr.rank, lr.pid)
	h.reconcile(lj)
}

// attached answers a rank that came back: it has the descriptor already.
func (h *Host) attached(ev session.Hello, ref *holding.Arena, inc replica.Incarnation, epoch replica.Epoch) {
	h.desk.Admit(ev.Peer, desk.Caller{Job: ref.Spec().Job, Rank: ev.Hello.Rank, Nonce: ev.Hello.Nonce})
	h.launchers.Attached(ev.Hello.Job, ev.Hello.Rank)
	hd := ref.Header()
	body := wire.Attached{ArenaBytes: hd.ArenaBytes, Incarnation: inc, Slots: hd.Slots, Ring: hd.Ring, Fence: ref.Fence(), Job: ref.Spec().Job}.Append(nil)
	ev.Peer.Send(wire.RankHeader{Type: wire.MAttached, Request: ev.Header.Request, Epoch: epoch, Incarnation: inc}, body) //nolint:errcheck // a dead peer is Gone
}
