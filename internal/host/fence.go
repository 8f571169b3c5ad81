package host

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// fence raises every local fence word to the job's closed epoch, before anyone is told or anything is aborted.
func (h *Host) fence(lj *localJob) {
	closed := lj.job.ClosedEpoch
	if lj.job.Phase == replica.Ended {
		closed = max(closed, lj.job.Epoch)
		h.desk.Fence(lj.job.ID, replica.MaxEpoch) // no epoch is to come
	}
	if closed <= lj.fenced {
		return
	}
	ended := lj.job.Phase == replica.Ended // a rank that left then waits for BYE alone
	for _, lr := range lj.ranks {
		if !ended || !lr.left() {
			lr.arena.RaiseFence(closed)
		}
	}
	lj.fenced = closed
	lj.settleTime = h.cfg.Timing.Settle + lj.copyTime()
	lj.settleBy = time.Now().Add(lj.settleTime)
	for _, lr := range lj.ranks {
		if lr.peer != nil && (!ended || !lr.left()) {
			lr.peer.Send(wire.RankHeader{Type: wire.MFence, Epoch: closed, Incarnation: lr.incarnation}, nil) //nolint:errcheck // the word says it too; a dead peer is Gone
		}
	}
	h.desk.Fence(lj.job.ID, closed)
}

// copyRate is what a capture under way is taken to copy at least in a second, in bytes: settle_timeout alone is a size's, not a fault's.
const copyRate = 256 << 20

// copyTime is how long the largest capture under way here may take beyond settle_timeout.
func (lj *localJob) copyTime() (longest time.Duration) {
	for _, lr := range lj.ranks {
		if lr.alive() && lr.arena.Unsealed() {
			longest = max(longest, time.Duration(float64(lr.arena.Geometry().ReplicatedBytes)/copyRate*float64(time.Second)))
		}
	}
	return longest
}

// settle finishes what dead ranks left and tears what live ones do not finish in time; true while something is awaited.
func (h *Host) settle(lj *localJob) bool {
	if lj.job.Phase != replica.Closed || lj.fenced < lj.job.ClosedEpoch {
		return false
	}
	waiting := false
	for _, lr := range lj.ranks {
		if lr.settled() {
			continue
		}
		waiting = true
		if lr.alive() && lj.job.Options.CollectiveWindow && lr.arena.Step().Phase() == replica.Updating && !lr.arena.Unsealed() {
			h.log.RankNote(lj.job, lr.rank, "collective_window", "it is inside its optimizer step, where it waits for ranks that will not come: its live state is taken for torn at once")
			lr.torn = lj.job.ClosedEpoch
			h.report(lj)
		}
		if lr.alive() && !lr.settled() && time.Now().After(lj.settleBy) {
			h.log.RankNote(lj.job, lr.rank, "settle_timeout", "did not stop in time: the step that it had not finished is torn; the plan waits for the rank, and recovery treats it as hung in the end")
			lr.arena.TearAll()
			lr.torn = lj.job.ClosedEpoch
			h.report(lj)
		}
	}
	return waiting
}

// reap kills ranks of a job that is over which were told to stop and did not in time: one that sleeps would hold its memory for
// ever. A rank that said that it has finished may take its time.
func (h *Host) reap(lj *localJob) {
	if !room.Over(lj.job) {
		lj.stopBy = time.Time{}
		return
	}
	if lj.stopBy.IsZero() {
		lj.stopBy = time.Now().Add(h.cfg.Timing.Settle)
	}
	for _, lr := range lj.ranks {
		if lr.alive() && !lr.left() && !lr.killed && !lr.unproven && time.Now().After(lj.stopBy) {
			lr.killed = true
			h.log.RankNote(lj.job, lr.rank, "stop_timeout", fmt.Sprintf("process %d was told %v ago that its job has ended or was stopped, and is still there: killed", lr.pid, h.cfg.Timing.Settle))
			h.kill(lj, lr)
		}
	}
}

// rankDied handles the exit of a rank's process: what was being copied is torn, what was COPIED is hashed and sealed in
// its name, its step word stays readable.
func (h *Host) rankDied(lj *localJob, lr *localRank) {
	if !lr.alive() {
		return
	}
	lr.peer = nil
	lr.does(dies)
	word := lr.arena.Step()
	h.log.RankDied(lj.job, lr.rank, lr.pid, word, lr.left())
	h.buryLeft(lj, lr)
	if !lr.left() && lj.job.Phase != replica.Ended {
		h.send(control.Evidence{Job: lj.job.ID, Fault: replica.Fault{Epoch: lj.job.Epoch, Kind: replica.ProcessDead, Rank: lr.rank, Incarnation: lr.incarnation, Detail: cmp.Or(lr.end, "process exited in "+word.Phase().String())}})
	}
	h.reconcile(lj)
	h.admission.Serve(time.Now())
}

// buryLeft gives up what was left half done in the arena of a rank that writes no more, and seals in its name what was whole.
func (h *Host) buryLeft(lj *localJob, lr *localRank) {
	for _, p := range lr.arena.GiveUpLeft() {
		h.finish(lj, lr, p)
	}
}

// partFinished is the end of hashing a COPIED part in a dead rank's name.
type partFinished struct {
	job   replica.JobID
	rank  replica.Rank
	arena *holding.Arena
	place shm.Place
	err   error
}

// finish hashes and seals a COPIED place of a dead rank, beside the host.
func (h *Host) finish(lj *localJob, lr *localRank, p shm.Place) {
	lr.finishing++
	a := lr.arena
	a.Hold(p)
	ev := partFinished{job: lj.job.ID, rank: lr.rank, arena: a, place: p}
	h.work.Go(func() {
		ev.err = a.Finish(p)
		h.Post(ev)
	})
}

func (h *Host) finishedPart(ev partFinished) {
	ev.arena.Release(ev.place)
	lj := h.jobs[ev.job]
	if lj == nil {
		return
	}
	if ev.err != nil {
		h.log.Failed("finish", ev.arena.Key(), ev.err.Error())
		ev.arena.GiveUp(ev.place)
	}
	if lr := lj.ranks[ev.rank]; lr != nil && lr.arena == ev.arena {
		lr.finishing--
		if ev.err == nil {
			h.sealed(lj, lr, ev.place)
		}
	}
	h.reconcile(lj)
	h.admission.Serve(time.Now())
}

// supersede stops ranks whose claim a newer incarnation took over: their arenas stay as holders, their processes go (P3).
func (h *Host) supersede(lj *localJob) {
	for r, lr := range lj.ranks {
		c := replica.Claimed{}
		if int(r) < len(lj.job.Ranks) {
			c = lj.job.Ranks[r]
		}
		if c.Incarnation <= lr.incarnation && lj.job.Phase != replica.Ended {
			h.brokenOff(lj, lr)
			if stop := lj.job.Stop; stop != nil {
				h.stopRank(lj, lr, "the job was stopped: "+stop.Reason)
			}
			continue
		}
		if lj.job.Phase == replica.Ended {
			h.stopRank(lj, lr, "the job has ended: "+lj.job.EndReason)
			if !lr.alive() {
				delete(lj.ranks, r)
				h.forget(lr.arena)
			}
			continue
		}
		h.stopRank(lj, lr, "superseded by a newer incarnation of the rank")
		if lr.alive() {
			if !lr.unproven {
				h.kill(lj, lr)
			}
			continue // its exit comes as an event, and its arena is retired then
		}
		delete(lj.ranks, r)
		lj.retired = append(lj.retired, lr.arena)
	}
	if lj.job.Phase == replica.Ended {
		h.mover.EndPushes(lj.job.ID)
		for _, a := range lj.retired {
			h.forget(a)
		}
		lj.retired = nil
	}
	h.release(lj)
}

// release gives up the arenas of ranks that are elsewhere now, once they hold nothing that the job may go back to: their
// memory is somebody else's then.
func (h *Host) release(lj *localJob) {
	if lj.job.Phase != replica.Open {
		return
	}
	keep := lj.retired[:0]
	for _, a := range lj.retired {
		if room.Useful(lj.job, a) {
			keep = append(keep, a)
		} else {
			h.forget(a)
		}
	}
	lj.retired = keep
}

// shortly is why a rank has to exit, as far as an order has room: half a reason would name no cause, and where no launcher runs nobody else says it.
func shortly(why string) string {
	if len(why) <= wire.MaxOrderText {
		return why
	}
	what, _, _ := strings.Cut(why, ":")
	return what + ": `replicad status` says why"
}

// stopRank tells a rank to exit: once, but who left as often as they ask.
func (h *Host) stopRank(lj *localJob, lr *localRank, why string) {
	key := orderKey{lj.job.Epoch, wire.OrderStop}
	if lr.peer == nil || lr.ordered == key {
		return
	}
	lr.ordered = key
	if lr.leaveTo != 0 && lj.job.Phase == replica.Ended {
		lr.peer.Send(wire.RankHeader{Type: wire.MBye, Request: lr.leaveTo, Epoch: lj.job.Epoch, Incarnation: lr.incarnation}, nil) //nolint:errcheck // a dead peer is Gone
		return
	}
	h.sendOrder(lr, lj.job.Epoch, wire.Order{Action: wire.OrderStop, Code: wire.CodeStopped, Text: shortly(why)})
}

// peersLost turns a rank that stopped under an open epoch, for want of its peers, into evidence where nothing else
// explains it: what really failed is found much sooner.
func (h *Host) peersLost(lj *localJob) {
	if lj.job.Phase != replica.Open {
		return
	}
	for _, lr := range lj.ranks {
		if lr.alive() && lr.stopped() && lr.loaded == lj.job.Epoch && time.Since(lr.stoppedAt) > recovery.PeersLost {
			lr.stoppedAt = time.Now()
			h.send(control.Evidence{Job: lj.job.ID, Fault: replica.Fault{Epoch: lj.job.Epoch, Kind: replica.Exception, Rank: lr.rank, Incarnation: lr.incarnation, Detail: "stopped under an open epoch and no other fault explains it"}})
		}
	}
}
