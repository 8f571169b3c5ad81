package job

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/replica"
)

// reports is what the leader was told of the job, and since when it is so.
type reports struct {
	since    stageClock // since when it is where it is
	still    reportClock
	seq      uint64
	Reported replica.NodeReport // as sent last, to send only changes
}

// parts lists every sealed part held here.
func parts(j *Job) []holding.Copy { return j.View().Copies() }

// Report sends the node's full account of a job when it changed, or when one is due.
func (j *Job) Report() {
	if !j.at.Node.Linked() {
		return
	}
	self := j.at.Node.Self()
	r := replica.NodeReport{Job: j.Job.ID, Holder: self.Holder(), Session: self.Session, Fenced: j.Fenced, Settled: true, Epoch: j.Job.Epoch, Phase: j.Job.Phase}
	for _, lr := range j.Ranks {
		rr := lr.Report(j.Job)
		rr.Growth = j.at.Growing.Of(j.Job.ID, lr.Rank)
		if lr.Loads(j.Job) && rr.Ordered == 0 {
			rr.Failing = j.at.Restores.Failing(j.Job.ID, j.Job.Epoch, lr.Rank)
		}
		r.Settled = r.Settled && rr.Settled
		r.Ranks = append(r.Ranks, rr)
	}
	r.Ranks = append(r.Ranks, orphaned(j)...)
	for _, l := range parts(j) {
		if l.Held.Part.Kind != replica.FrozenPart && l.Whole() {
			r.Parts = append(r.Parts, l.Held)
		}
	}
	if j.Job.Phase == replica.Open {
		j.Bad, j.BadDisk = nil, nil
		r.Candidate = j.goesOnWith(j.Job, parts(j))
	}
	r.Lacks = j.lacks.Report()
	r.Bad, r.BadDisk = slices.Clone(j.Bad), slices.Clone(j.BadDisk)
	j.launcher().Fill(&r, j.at.Node.Now())
	if extra := j.SettleTime - j.at.Config.Timing.Settle; extra > 0 {
		r.SettleMS = uint64(j.SettleTime.Milliseconds())
	}
	sortReport(&r)
	r.Seq = j.Reported.Seq
	if reflect.DeepEqual(r, j.Reported) {
		return
	}
	j.seq++
	r.Seq = j.seq
	sent := j.timed(r, j.at.Node.Up())
	invariant.Holds(r.Seq > j.Reported.Seq, "report %d of job %s follows report %d", r.Seq, j.Job.Name, j.Reported.Seq)
	j.Reported = r
	j.at.send(sent)
}

// takenForDead tells whether a job has this node down as dead or silent, though it reads that. Its reports end that, if they come after the
// fault: it repeats them meanwhile.
func takenForDead(j *Job) bool {
	self := j.at.Node.Self()
	return slices.ContainsFunc(j.Job.Faults, func(f replica.Fault) bool {
		return f.OfNode() && f.Kind.IsCondition() && f.Node == self.Name && f.NodeIncarnation == self.Incarnation
	})
}

// orphaned are the claims of this node that no process of it has: it went, or was refused its arena, between the two, or
// the daemon was away then. Nobody else would ever report their deaths.
func orphaned(j *Job) (dead []replica.RankReport) {
	self := j.at.Node.Self()
	for r, c := range j.Job.Ranks {
		of := replica.Rank(r)
		if c.Incarnation == 0 || c.Node != self.Name || c.NodeIncarnation != self.Incarnation || j.at.Admission.Claiming(j.Job.Name, of) {
			continue
		}
		if lr := j.Ranks[of]; lr == nil || lr.Incarnation < c.Incarnation {
			dead = append(dead, replica.RankReport{Rank: of, Incarnation: c.Incarnation, Settled: true})
		}
	}
	return dead
}

// timed is a report with for how long things have been so, which is no change by itself.
func (j *Job) timed(r replica.NodeReport, now time.Duration) replica.NodeReport {
	r.StillMS, r.SinceMS = millis(j.still.look(now, r)), millis(j.since.look(now, j.Job))
	ranks := make([]replica.RankReport, len(r.Ranks))
	for i, rr := range r.Ranks {
		if lr := j.Ranks[rr.Rank]; lr != nil && lr.Incarnation == rr.Incarnation {
			rr.StillMS = millis(lr.Still.Look(now, rr))
		}
		ranks[i] = rr
	}
	r.Ranks = ranks
	return r
}

func millis(d time.Duration) uint64 { return uint64(max(d, 0).Milliseconds()) }

// sayRemarks sends the leader what ranks and launchers here report of the generation that is being written.
func sayRemarks(j *Job) {
	if list, news := j.remarks.Report(j.Job); news {
		j.at.send(control.SaidReport{Job: j.Job.ID, Number: j.Job.Writer.Number, Said: list})
	}
}

// Remark enters the notes that a launcher gives the job.
func (j *Job) Remark(notes []replica.Remark) {
	j.remarks.Say(replica.ByLauncher, 0, notes)
	sayRemarks(j)
}

// Lacking is what a generation lacks, by the word of the ranks here.
func (j *Job) Lacking(g replica.Generation) []replica.Lacking {
	by := map[replica.Rank]string{}
	for _, l := range j.lacks.Report() {
		by[l.Rank] = l.Of(g)
	}
	return replica.Fold(by)
}

// sortReport puts a report in one order, so that equal ones compare equal.
func sortReport(r *replica.NodeReport) {
	slices.SortFunc(r.Ranks, func(a, b replica.RankReport) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	slices.SortFunc(r.Parts, func(a, b replica.Held) int {
		return cmp.Or(cmp.Compare(a.Part.Kind, b.Part.Kind), cmp.Compare(a.Part.Index, b.Part.Index), a.Generation.Compare(b.Generation), cmp.Compare(a.Rank, b.Rank))
	})
}

// stageClock is since when the node has known a job in its present phase.
type stageClock struct {
	epoch, closed replica.Epoch
	phase         replica.JobPhase
	at            time.Duration
}

func (c *stageClock) look(now time.Duration, job *replica.Job) time.Duration {
	if c.epoch != job.Epoch || c.closed != job.ClosedEpoch || c.phase != job.Phase {
		*c = stageClock{job.Epoch, job.ClosedEpoch, job.Phase, now}
	}
	return now - c.at
}

// reportClock is since when a node has had nothing else to report of a job.
type reportClock struct {
	is replica.NodeReport
	at time.Duration
}

func (c *reportClock) look(now time.Duration, r replica.NodeReport) time.Duration {
	if r.Seq = 0; !reflect.DeepEqual(r, c.is) {
		c.is, c.at = r, now
	}
	return now - c.at
}
