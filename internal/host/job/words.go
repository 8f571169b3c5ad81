package job

import (
	"cmp"
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Hears takes what a rank here sends. False: the session speaks for none of the job's ranks.
func (j *Job) Hears(p session.Peer, ev session.Event) bool {
	r, ok := j.Of(p)
	if ok {
		hears(j, j.Ranks[r], ev)
	}
	return ok
}

func hears(j *Job, lr *rank.Rank, ev session.Event) {
	switch ev := ev.(type) {
	case session.Sealed:
		Sealed(j, lr, shm.Place{Kind: shm.PlaceKind(ev.Sealed.Kind), Index: int(ev.Sealed.Index)})
	case session.Grow:
		grows(j, lr, ev)
	case session.Stopped:
		if strayed(j, lr, ev.Live) {
			return
		}
		lr.Stops(j.at.Node.Now(), j.Job)
		j.Reconcile()
	case session.Loaded:
		loaded(j, lr, ev)
	case session.Fail:
		failed(j, lr, ev)
	case session.Reject:
		lr.Rejected = ev.Header.Epoch
		j.at.send(control.Rejected{Job: j.Job.ID, Epoch: ev.Header.Epoch, Rank: lr.Rank, Incarnation: lr.Incarnation, Why: ev.Text})
	case session.Unloadable:
		accuse(j, lr, replica.Fault{Epoch: ev.Header.Epoch, Kind: replica.BadDigest, Detail: "load: " + ev.Text})
	case session.Pause:
		Paused(j, lr, ev.Most)
		if ev.Header.Request != 0 {
			lr.Paused(ev.Header.Request, j.Job.Epoch)
		}
	case session.Ending:
		lr.Ending = millis(ev.Most) // in an open epoch the limits of a hang hold as they are: its peers wait for it
		j.Report()
	case session.Lacks:
		if j.lacks.Say(lr.Rank, lr.Incarnation, ev.Text, lr.Arena.Step().Generation()) {
			j.at.Log.RankNote(j.Job, lr.Rank, "lacks", cmp.Or(ev.Text, "nothing any more"))
			j.Report()
		}
	case session.Said:
		j.remarks.Say(lr.Rank, lr.Incarnation, ev.Remarks)
		sayRemarks(j)
	case session.Leave:
		lr.Leaves(ev.Header.Request, j.Job)
		j.Reconcile()
	}
}

// Lost follows the end of a session. A process lives until its exit is seen.
func (j *Job) Lost(p session.Peer) {
	if r, ok := j.Of(p); ok {
		j.Ranks[r].Peer = nil
		j.Report()
	}
}

// failed passes an exception on to the leader and the launchers.
func failed(j *Job, lr *rank.Rank, ev session.Fail) {
	accuse(j, lr, replica.Fault{Epoch: ev.Header.Epoch, Kind: replica.Exception, Detail: ev.Text})
	word := lr.Arena.Step()
	step := word.Step()
	if word.Phase() == replica.Idle {
		step++ // it is on its way to the next one
	}
	j.launcher().Failed(lr.Rank, ev.Header.Epoch, step, ev.Text)
}

// Order derives and sends the order that each attached rank needs now.
func Order(j *Job) {
	for r, lr := range j.Ranks {
		var lies *rank.Lies
		if here, done := j.at.Restores.Done(j.Job.ID, j.Job.Epoch, r); done {
			lies = &rank.Lies{Tier: here.Tier, Slot: here.Slot, Ring: here.Ring}
		}
		lr.Obey(j.Job, lies)
	}
}

// loaded checks a rank's acknowledgement against the plan.
func loaded(j *Job, lr *rank.Rank, ev session.Loaded) {
	job := j.Job
	if job.Phase != replica.Planned || job.Plan == nil || ev.Header.Epoch != job.Epoch {
		return // of an epoch closed meanwhile
	}
	group, private := lr.Sources(job)
	if ev.Loaded.ReplicatedRoot != group.Root || ev.Loaded.PrivateRoot != private.Root || ev.Loaded.Generation != job.Plan.Generation {
		accuse(j, lr, replica.Fault{Epoch: job.Epoch, Kind: replica.BadDigest,
			Detail: fmt.Sprintf("loaded %v with roots %v and %v; the plan names %v, %v and %v", ev.Loaded.Generation, ev.Loaded.ReplicatedRoot, ev.Loaded.PrivateRoot, job.Plan.Generation, group.Root, private.Root)})
		return
	}
	lr.Loaded = job.Epoch
	j.Reconcile()
}
