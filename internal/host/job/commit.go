package job

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/push"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Sealed follows a place that became SEALED: a private part goes to its mirrors at once, what the leader wants to commit
// next is pinned.
func Sealed(j *Job, lr *rank.Rank, p shm.Place) {
	info, err := lr.Arena.Info(p)
	if err != nil {
		return // freed or torn meanwhile: the word is the truth, the message only a wake-up
	}
	j.at.Node.Notify(j.at.Push, push.Sealed{Job: j.Job.ID, Rank: lr.Rank, Place: p, Info: info})
	if p.Kind == shm.Slot {
		lr.SealedAt[info.Generation] = j.at.Node.Now()
	}
	CheckInitial(j, lr)
	switch {
	case j.Job.Phase != replica.Open:
		j.Reconcile()
	case info.Generation == j.Candidate.Generation:
		j.AnswerCandidate()
		j.Retain()
	default: // whatever else is here has not changed: with many ranks, looking at all of it for each seal would cost their number squared
		answerPassed(j, lr)
		retainArena(j, lr.Arena, lr)
	}
}

// CheckInitial notes that a rank has sealed both parts of (epoch, init).
func CheckInitial(j *Job, lr *rank.Rank) {
	if j.Job.Phase != replica.Opening || lr.Initial == j.Job.Epoch {
		return
	}
	if lr.Arena.Captured(j.Job.Epoch) {
		lr.Initial = j.Job.Epoch
		j.Report()
	}
}

// Name obeys the leader's newest candidate: every pin of an older one is let go. One that another leader names again was only not asked for
// meanwhile.
func (j *Job) Name(c replica.Candidate) {
	switch over := c.Compare(j.Candidate); {
	case over == 0:
		j.asks = true // over another link
		return
	case over < 0:
		return
	}
	j.obey(c, j.Job.Position, j.at.Node.Now(), j.View().Furthest(c.Generation.Epoch))
	for _, lr := range j.Ranks {
		lr.Arena.SetCandidate(c.Position)
	}
	for _, l := range parts(j) {
		if j.outdated(l) {
			l.Arena.Pin(l.Place, 0, 0)
		}
	}
	j.at.Node.Notify(j.at.Push, push.Named{Job: j.Job.ID})
	j.AnswerCandidate()
	j.Retain()
}

// AnswerCandidate pins what is held sealed of the candidate and reports that, or that a rank has passed it. A daemon that goes does not: what is
// committed once it has looked would be in no spool.
func (j *Job) AnswerCandidate() {
	c, node := j.Candidate, j.at.Node
	if !node.Linked() || node.Going() || !j.awaited(j.Job) {
		return
	}
	var fresh []replica.Held
	for _, l := range parts(j) {
		if !j.owes(l) {
			continue
		}
		l.Arena.Pin(l.Place, c.Term, c.N)
		if now, err := l.Arena.Info(l.Place); err != nil || now.Generation != c.Generation {
			continue // freed and filled anew meanwhile
		}
		j.Answered[pinKey(l)] = true
		fresh = append(fresh, l.Held)
	}
	if len(fresh) > 0 {
		j.at.send(j.pins(node.Self(), fresh, j.View().Furthest(c.Generation.Epoch)))
	}
	for _, lr := range j.Ranks {
		if planted.Early {
			if _, has := lr.SealedAt[c.Generation]; has {
				lr.Arena.SetCommitted(c.Position)
			}
		}
		answerPassed(j, lr)
	}
}

// answerPassed reports that a rank has passed the candidate, or stands below it.
func answerPassed(j *Job, lr *rank.Rank) {
	if !j.at.Node.Linked() || !j.awaited(j.Job) || !lr.Alive() && !lr.Left() {
		return
	}
	if p, due := j.passes(j.Job, j.at.Node.Self(), lr.Rank, lr.Arena, lr.Stands() || lr.Rests(j.at.Node.Up())); due {
		j.at.send(p)
	}
}

// Progressed follows a commit: the once-a-step path.
func (j *Job) Progressed(p control.Progress) {
	if p.Index < j.Job.LastIndex {
		return
	}
	j.Job = p.After(j.Job)
	j.clocks.Follow(j.at.Node.Up(), j.Job)
	tellCommitted(j)
	j.at.Launchers.LetGo()
	j.at.Node.Notify(j.at.Push, act.Committed{Job: j.Job.ID})
	j.Retain()
	release(j)
	j.at.Node.Notify(j.at.Mirrors, act.Committed{Job: j.Job.ID})
}

// tellCommitted has the ranks here know how far their job is committed.
func tellCommitted(j *Job) {
	now := j.at.Node.Now()
	for _, lr := range j.Ranks {
		lr.Arena.SetCommitted(j.Job.Position)
		if at, ok := lr.SealedAt[j.Job.Committed]; ok {
			j.at.Log.CommitLag(j.Job, now.Sub(at))
			j.at.Log.CommitsSeen(j.Job, &j.spell, now.Sub(at), now)
		}
		lr.Forgets(j.Job.Committed.Step)
	}
	j.launcher().Lacks(j.lacks.Committed(j.Job.Committed))
}

// CaptureNow asks local ranks to capture their live state as generation g: they all stand whole at it, and it would then
// be eligible (protocol section 6, settle). A process that took a rank over since has no state to capture, whatever stands in the
// arena that it got: it has loaded nothing of that epoch.
func (j *Job) CaptureNow(g replica.Generation) {
	if j.Job.Phase != replica.Closed {
		return
	}
	for _, lr := range j.Ranks {
		if lr.Alive() && lr.Stopped() && (planted.Heir || lr.Loaded == g.Epoch) && lr.Arena.Step().Generation() == g && lr.Arena.Good().Generation() == g {
			lr.Order(j.Job.ClosedEpoch, wire.Order{Action: wire.OrderCapture, Step: g.Step, Generation: g})
		}
	}
}

// Paused follows a rank's word that it stands still on purpose, for at most so long; 0 ends it.
func Paused(j *Job, lr *rank.Rank, most time.Duration) {
	lr.Pause(j.at.Node.Up(), lr.Arena.Step(), most)
	j.AnswerCandidate()
}
