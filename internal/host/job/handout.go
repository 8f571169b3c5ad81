package job

import (
	"slices"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/adoption"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// inform writes what a rank must know into the arena that it is about to get.
func inform(j *Job, ref *holding.Arena) {
	ref.RaiseFence(max(j.Fenced, j.Job.ClosedEpoch))
	ref.SetCommitted(j.Job.Position)
	ref.SetCandidate(j.Candidate.Position)
	ref.SetCadence(lock.Cadence(j.Job))
}

// watch has the end of a rank's process reported.
func watch(j *Job, lr *rank.Rank) {
	if err := j.at.Node.Watch(lr.PID, lr.Start); err != nil {
		j.at.Log.Failed("watch", lr.Arena.Key(), err.Error())
	}
}

// HandOut makes a process the rank that it has claimed: its arena is with the keeper.
func (j *Job) HandOut(c admission.Claimed) {
	ref := c.Arena
	j.Retired = slices.DeleteFunc(j.Retired, func(r *holding.Arena) bool { return r == ref })
	if old := j.Ranks[c.Rank]; old != nil && old.Arena != ref {
		j.Keep(old.Arena)
	}
	lr := rank.New(c.Rank, c.Incarnation, ref, rank.Process{PID: c.Peer.PID(), Start: c.Peer.StartTime()})
	lr.Peer = c.Peer
	j.Ranks[c.Rank] = lr
	j.at.Launchers.Attached(j.Job.Name, c.Rank)
	j.launcher().Found()
	inform(j, ref)
	j.at.Admission.Answer(j, c.Rank, c.Request, j.at.Node.Now())
	j.at.Memory.Save() // it is handed out
	j.at.Memory.Reserve(ref)
	j.at.Log.Claimed(j.Job, lr.Rank, lr.Incarnation, j.at.Node.Self().Name, lr.PID)
	watch(j, lr)
	j.Reconcile()
}

// HandOutAgain connects a rank to which the daemon before this one had not handed its arena out.
func (j *Job) HandOutAgain(r replica.Rank, p session.Peer, request uint32) {
	lr := j.Ranks[r]
	lr.Peer, lr.Unproven, lr.Ordered = p, false, rank.OrderKey{}
	j.at.Launchers.Attached(j.Job.Name, r)
	lr.Arena.SetCandidate(j.Candidate.Position)
	lr.Arena.SetCadence(lock.Cadence(j.Job))
	j.at.Admission.Answer(j, r, request, j.at.Node.Now())
	j.at.Log.Claimed(j.Job, r, lr.Incarnation, j.at.Node.Self().Name, lr.PID)
	j.Reconcile()
}

// Place makes an adopted arena that of its rank.
func (j *Job) Place(e adoption.Place) {
	of := e.Arena.Process
	lr := rank.New(e.Rank, e.Incarnation, e.Arena, rank.Process{PID: of.PID, Start: of.Start, Unproven: !of.Proven})
	if e.Finished {
		lr.Life = rank.Finished
	}
	lr.Peer, lr.Loaded, lr.HalfDone = e.Peer, e.Loaded, e.Arena.HalfDone()
	j.Ranks[e.Rank] = lr
	j.at.Memory.Reserve(e.Arena)
	e.Arena.RaiseFence(j.Fenced)
	e.Arena.SetCommitted(j.Job.Position) // it may have moved while no daemon was here to say so
}

// Settled hears what an adopted rank has sent, and looks after its process.
func (j *Job) Settled(e adoption.Settle) {
	lr := j.Ranks[e.Rank]
	if lr == nil || lr.Arena != e.Arena {
		return // given up meanwhile
	}
	CheckInitial(j, lr)
	for _, ev := range e.Sent {
		hears(j, lr, ev)
	}
	if j.Ranks[lr.Rank] != lr {
		return // given up by what it said
	}
	alive := j.at.Node.Processes().Alive(lr.PID, lr.Start)
	j.at.Log.Adopted(j.Job, lr.Rank, lr.PID, alive)
	watch(j, lr)
	if !alive {
		Died(j, lr)
	}
}

// Back takes back a rank whose daemon was away. False: the process has none of the job's ranks.
func (j *Job) Back(ev session.Hello) bool {
	lr := j.Ranks[ev.Hello.Rank]
	if lr == nil || lr.PID != ev.Peer.PID() || lr.Start != ev.Peer.StartTime() || j.Job.Name != ev.Hello.Job {
		return false
	}
	unproven := lr.Unproven
	lr.Returns(ev.Peer)
	if unproven {
		j.at.Memory.Save()
	}
	j.at.Admission.Back(ev, lr.Arena, lr.Incarnation, j.Job.Epoch)
	j.at.Log.Reattached(j.Job, lr.Rank, lr.PID)
	j.Reconcile()
	return true
}
