package host

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/growth"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// waitsForGrowth counts a rank's standstill as none of its own while it asks to grow.
func (h *Host) waitsForGrowth(e growth.Waits) {
	if lj := h.jobs[e.Job]; lj != nil && lj.ranks[e.Rank] != nil {
		most := time.Duration(0)
		if e.Is {
			most = longestGrowth
		}
		h.paused(lj, lj.ranks[e.Rank], most)
	}
}

// longestGrowth is for how long a rank that asks to grow is no hang. Who ends its wait is the leader.
const longestGrowth = 24 * time.Hour

// grows takes a rank's call for other regions.
func (h *Host) grows(lj *localJob, lr *localRank, ev session.Grow) {
	g, err := admission.Registered(ev.Regions)
	if err != nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeInvalid, err.Error())
		return
	}
	h.notify(h.growing, growth.Asked{Job: lj.job.ID, Rank: lr.rank, Incarnation: lr.incarnation, Peer: ev.Peer, Request: ev.Header.Request, Ask: askNumber(), Epoch: ev.Header.Epoch, Step: ev.Growth.Step, Geometry: g, Recipe: ev.Recipe})
}

func askNumber() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// recipe tells a process how it gets the regions that its job has, a piece at a time. While a growth is under way nobody knows that.
func (h *Host) recipe(ev session.Recipe) {
	lj, _ := h.rankOf(ev.Peer)
	if name, is := h.admission.JobOf(ev.Peer.ID()); lj == nil && is {
		lj = h.jobNamed(name)
	}
	if lj == nil || lj.job.Growth != nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "the job is not known here yet, or grows at this moment")
		return
	}
	all := lj.job.Recipe
	from := min(int(ev.Offset), len(all))
	piece := wire.Piece{Offset: uint32(from), Total: uint32(len(all)), Bytes: all[from:min(from+wire.MaxPiece, len(all))]}
	ev.Peer.Send(wire.RankHeader{Type: wire.MRecipeIs, Request: ev.Header.Request, Epoch: lj.job.Epoch}, piece.Append(nil)) //nolint:errcheck // a dead peer is Gone
}

// handOutGrown makes the arena of a growth that is decided that of its rank. The one of before is a holder until the growth has resumed: the job may
// go back to what lies there.
func (h *Host) handOutGrown(e growth.HandOut) {
	lj := h.jobs[e.Job]
	lr := lj.ranks[e.Rank]
	ev := grownParked{e.Job, e.Rank, lr.arena, e.Peer, e.Request}
	if e.Arena != nil {
		ref := holding.New(e.Arena, holding.GrownKey(e.Job, e.Rank, lr.incarnation, lj.job.Epoch), h.unmap)
		ref.Process = holding.Process{PID: lr.pid, Start: lr.start, Proven: !lr.unproven}
		ref.SetOwner(lr.incarnation, uint64(lr.pid), lr.start)
		h.custody.Put(ref.Key(), ref.File())
		lj.retired = append(lj.retired, lr.arena)
		lr.takes(ref)
		ref.RaiseFence(max(lj.fenced, lj.job.ClosedEpoch))
		ref.SetCommitted(lj.job.Position)
		ref.SetCandidate(lj.candidate.Position)
		ref.SetCadence(lock.Cadence(lj.job))
		h.saveArenas()
		h.reserve(ref)
		h.log.RankNote(lj.job, lr.rank, "grown", lj.job.Growth.What)
		ev.arena = ref
		h.report(lj)
	}
	h.custody.After(func() { h.Post(ev) })
}

// takes has the rank begin anew in another arena, in which it has sealed and loaded nothing.
func (lr *localRank) takes(ref *holding.Arena) {
	lr.arena, lr.halfDone = ref, nil
	lr.initial, lr.loaded, lr.rejected, lr.torn, lr.finishing = 0, 0, 0, 0, 0
	lr.ordered, lr.leaveTo, lr.sealedAt = orderKey{}, 0, map[replica.Generation]time.Time{}
	lr.does(grows)
}

// grownParked says that the arena of a growth is with the keeper, and on the list: it may be handed out.
type grownParked struct {
	job     replica.JobID
	rank    replica.Rank
	arena   *holding.Arena
	peer    session.Peer
	request uint32
}

func (h *Host) grownParked(ev grownParked) {
	lj := h.jobs[ev.job]
	if lj == nil || lj.ranks[ev.rank] == nil || lj.ranks[ev.rank].arena != ev.arena || lj.ranks[ev.rank].peer != ev.peer {
		return // it is dead, or connected anew: it asks again
	}
	h.admission.Answer(lj, ev.rank, ev.request, time.Now())
}

// outgrown tells whether the rank has the arena of a growth that a fault took back. Its process has given up what the job goes on from.
func (lr *localRank) outgrown(job *replica.Job) bool {
	e := lr.arena.Grown()
	return e > job.Grown && e <= job.ClosedEpoch
}

// brokenOff ends the process of a rank whose growth was taken back; its launcher starts another one, which registers what the job has. True: it was.
func (h *Host) brokenOff(lj *localJob, lr *localRank) bool {
	if !lr.outgrown(lj.job) || lj.job.Phase == replica.Ended {
		return false
	}
	h.stopRank(lj, lr, "the growth was broken off by a fault: a new process goes on")
	if lr.alive() && !lr.killed && !lr.unproven {
		lr.killed = true
		lr.end = "the growth was broken off by a fault: this process ends, and a new one takes its place, with the regions of before"
		h.log.RankNote(lj.job, lr.rank, "growth_broken_off", lr.end)
		h.kill(lj, lr)
	}
	return true
}

// strayed reports a rank that has stopped with the words of the arena of before, while the node takes it to have the next one: it did not wait for
// the answer.
func (h *Host) strayed(lj *localJob, lr *localRank, live replica.Word) bool {
	if lj.job.Growth == nil || lr.arena.Grown() != lj.job.Epoch || live.Epoch() == 0 || live.Epoch() >= lj.job.Epoch {
		return false
	}
	h.send(control.Evidence{Job: lj.job.ID, Fault: replica.Fault{Epoch: lj.job.Epoch, Kind: replica.Exception, Rank: lr.rank, Incarnation: lr.incarnation,
		Detail: fmt.Sprintf("the growth at step %d was decided, and the rank went on without waiting for its arena", lj.job.Growth.Step)}})
	return true
}

// sayGrowth tells launchers of a growth, once.
func (h *Host) sayGrowth(lj *localJob, was *replica.Job) {
	if is := lj.job.Growth; is != nil && was.Growth == nil {
		h.launchers.Of(lj).Note(fmt.Sprintf("job grows at step %d: %s", is.Step, cmp.Or(is.What, "other regions")))
	}
}

// Lacks is why an arena can't be had here now.
func (h rooms) Lacks(spec shm.Spec) error {
	if err := h.Descriptors(); err != nil {
		return err
	}
	return h.Room(spec)
}
