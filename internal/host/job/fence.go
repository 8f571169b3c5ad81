package job

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Fence raises every local fence word to the job's closed epoch, before anyone is told or anything is aborted.
func Fence(j *Job) {
	closed := j.Job.ClosedEpoch
	ended := j.Job.Phase == replica.Ended // a rank that left then waits for BYE alone
	if ended {
		closed = max(closed, j.Job.Epoch)
		j.at.Node.FenceDesk(j.Job.ID, replica.MaxEpoch) // no epoch is to come
	}
	if closed <= j.Fenced {
		return
	}
	for _, lr := range j.Ranks {
		if !ended || !lr.Left() {
			lr.Arena.RaiseFence(closed)
		}
	}
	j.Fenced = closed
	j.SettleTime = j.at.Config.Timing.Settle + j.copyTime()
	j.SettleBy = j.at.Node.Now().Add(j.SettleTime)
	for _, lr := range j.Ranks {
		if !ended || !lr.Left() {
			lr.Fence(closed)
		}
	}
	j.at.Node.FenceDesk(j.Job.ID, closed)
}

// Settle finishes what dead ranks left and tears what live ones do not finish in time; true while something is awaited.
func Settle(j *Job) bool {
	if j.Job.Phase != replica.Closed || j.Fenced < j.Job.ClosedEpoch {
		return false
	}
	waiting := false
	for _, lr := range j.Ranks {
		if lr.Settled() {
			continue
		}
		waiting = true
		if lr.Alive() && j.Job.Options.CollectiveWindow && lr.Arena.Step().Phase() == replica.Updating && !lr.Arena.Unsealed() {
			j.at.Log.RankNote(j.Job, lr.Rank, "collective_window", "it is inside its optimizer step, where it waits for ranks that will not come: its live state is taken for torn at once")
			lr.Torn = j.Job.ClosedEpoch
			j.Report()
		}
		if lr.Alive() && !lr.Settled() && j.at.Node.Now().After(j.SettleBy) {
			j.at.Log.RankNote(j.Job, lr.Rank, "settle_timeout", "did not stop in time: the step that it had not finished is torn; the plan waits for the rank, and recovery treats it as hung in the end")
			lr.Arena.TearAll()
			lr.Torn = j.Job.ClosedEpoch
			j.Report()
		}
	}
	return waiting
}

// Reap kills ranks of a job that is over which were told to stop and did not in time: one that sleeps would hold its memory for
// ever. A rank that said that it has finished may take its time.
func Reap(j *Job) {
	if !room.Over(j.Job) {
		j.StopBy = time.Time{}
		return
	}
	settle := j.at.Config.Timing.Settle
	if j.StopBy.IsZero() {
		j.StopBy = j.at.Node.Now().Add(settle)
	}
	for _, lr := range j.Ranks {
		if lr.Alive() && !lr.Left() && !lr.Killed && !lr.Unproven && j.at.Node.Now().After(j.StopBy) {
			lr.Killed = true
			j.at.Log.RankNote(j.Job, lr.Rank, "stop_timeout", fmt.Sprintf("process %d was told %v ago that its job has ended or was stopped, and is still there: killed", lr.PID, settle))
			kill(j, lr)
		}
	}
}

// Died handles the exit of a rank's process: what was being copied is torn, what was COPIED is hashed and sealed in
// its name, its step word stays readable.
func Died(j *Job, lr *rank.Rank) {
	if !lr.Alive() {
		return
	}
	lr.Peer = nil
	lr.Does(rank.Dies)
	word := lr.Arena.Step()
	j.at.Log.RankDied(j.Job, lr.Rank, lr.PID, word, lr.Left())
	for _, p := range lr.Arena.GiveUpLeft() {
		finish(j, lr, p)
	}
	if !lr.Left() && j.Job.Phase != replica.Ended {
		accuse(j, lr, replica.Fault{Epoch: j.Job.Epoch, Kind: replica.ProcessDead, Detail: cmp.Or(lr.Why, "process exited in "+word.Phase().String())})
	}
	j.Reconcile()
	j.at.Admission.Serve(j.at.Node.Now())
}

// Exited takes the end of a process: it may hold several ranks.
func (j *Job) Exited(pid int, start uint64) {
	for _, lr := range j.Ranks {
		if lr.PID == pid && lr.Start == start {
			Died(j, lr)
		}
	}
}

// ProcessDied takes a launcher's word for the end of a rank's process.
func (j *Job) ProcessDied(r replica.Rank) { Died(j, j.Ranks[r]) }

// accuse sends the leader a fault of a rank.
func accuse(j *Job, lr *rank.Rank, f replica.Fault) {
	f.Rank, f.Incarnation = lr.Rank, lr.Incarnation
	j.at.send(control.Evidence{Job: j.Job.ID, Fault: f})
}

// partFinished is the end of hashing a COPIED part in a dead rank's name.
type partFinished struct {
	rank  replica.Rank
	arena *holding.Arena
	place shm.Place
	err   error
}

// finish hashes and seals a COPIED place of a dead rank, beside the node.
func finish(j *Job, lr *rank.Rank, p shm.Place) {
	lr.Finishing++
	a := lr.Arena
	a.Hold(p)
	ev := partFinished{rank: lr.Rank, arena: a, place: p}
	j.at.Node.Beside(j.Job.ID, func(context.Context) Ending {
		ev.err = a.Finish(p)
		return ev
	})
}

func (ev partFinished) End(j *Job) {
	ev.arena.Release(ev.place)
	if j == nil {
		return
	}
	if ev.err != nil {
		j.at.Log.Failed("finish", ev.arena.Key(), ev.err.Error())
		ev.arena.GiveUp(ev.place)
	}
	if lr := j.Ranks[ev.rank]; lr != nil && lr.Arena == ev.arena {
		lr.Finishing--
		if ev.err == nil {
			Sealed(j, lr, ev.place)
		}
	}
	j.Reconcile()
	j.at.Admission.Serve(j.at.Node.Now())
}

// Supersede stops ranks whose claim a newer incarnation took over: their arenas stay as holders, their processes go (P3).
func Supersede(j *Job) {
	for r, lr := range j.Ranks {
		c := replica.Claimed{}
		if int(r) < len(j.Job.Ranks) {
			c = j.Job.Ranks[r]
		}
		if c.Incarnation <= lr.Incarnation && j.Job.Phase != replica.Ended {
			growthBroken(j, lr)
			if stop := j.Job.Stop; stop != nil {
				lr.End(j.Job, "the job was stopped: "+stop.Reason)
			}
			continue
		}
		if j.Job.Phase == replica.Ended {
			lr.End(j.Job, "the job has ended: "+j.Job.EndReason)
			if !lr.Alive() {
				delete(j.Ranks, r)
				j.at.Memory.Forget(lr.Arena)
			}
			continue
		}
		lr.End(j.Job, "superseded by a newer incarnation of the rank")
		if lr.Alive() {
			if !lr.Unproven {
				kill(j, lr)
			}
			continue // its exit comes as an event, and its arena is retired then
		}
		j.Retire(r)
	}
	if j.Job.Phase == replica.Ended {
		j.at.Node.EndPushes(j.Job.ID)
		for _, a := range j.Retired {
			j.at.Memory.Forget(a)
		}
		j.Retired = nil
	}
	release(j)
}

// release gives up the arenas of ranks that are elsewhere now, once they hold nothing that the job may go back to: their
// memory is somebody else's then.
func release(j *Job) {
	if j.Job.Phase != replica.Open {
		return
	}
	keep := j.Retired[:0]
	for _, a := range j.Retired {
		if room.Useful(j.Job, a) {
			keep = append(keep, a)
		} else {
			j.at.Memory.Forget(a)
		}
	}
	j.Retired = keep
}

// PeersLost turns a rank that stopped under an open epoch, for want of its peers, into evidence where nothing else
// explains it: what really failed is found much sooner.
func PeersLost(j *Job) {
	if j.Job.Phase != replica.Open {
		return
	}
	now := j.at.Node.Now()
	for _, lr := range j.Ranks {
		if lr.Alive() && lr.Stopped() && lr.Loaded == j.Job.Epoch && now.Sub(lr.StoppedAt) > recovery.PeersLost {
			lr.StoppedAt = now
			accuse(j, lr, replica.Fault{Epoch: j.Job.Epoch, Kind: replica.Exception, Detail: "stopped under an open epoch and no other fault explains it"})
		}
	}
}
