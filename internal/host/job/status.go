package job

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/exposure"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Status is what the node knows of the job by itself, which stands where no leader answers.
func (j *Job) Status() control.JobStatus {
	st := control.StatusOf(j.Job, nil)
	s := exposed(j, j.at.Node.Now())
	if !s.Open || s.Live == 0 {
		return st
	}
	st.Uncommitted = s.Gap()
	st.AtRisk = exposure.Wide(s.Gap(), s.Cadence)
	if s.Leader > 0 {
		st.Waiting = append(st.Waiting, fmt.Sprintf("this node has heard no leader for %v: nothing is committed, and no lost rank is replaced; %s", s.Leader.Round(time.Second), s.Remedy))
	}
	return st
}

// Steps says how the ranks here get on. False: none trains.
func (j *Job) Steps() (control.StepMS, bool) {
	var s rank.StepTimes
	for _, lr := range j.Ranks {
		s.Count(j.at.Node.Up(), j.Job, lr)
	}
	return s.Is, s.Any
}

// Trains tells whether ranks of the job train here, and the newest step that one has begun. One that stands still on purpose does not.
func (j *Job) Trains() (newest replica.Step, trains bool) {
	for _, lr := range j.Ranks {
		if lr.UnderWay(j.Job) && lr.Gone == j.Job.Epoch && !lr.Stopped() && !lr.Pulse.Stands() {
			newest, trains = max(newest, lr.Arena.Step().Step()), true
		}
	}
	return newest, trains
}

// FetchedFor is the class of a fetch by a node: a mirror's waits for those of ranks, and once a job trains again nobody waits for either.
func (j *Job) FetchedFor(k transfer.Key, by replica.NodeName) manners.Class {
	switch {
	case j.Job.Phase == replica.Open:
		return manners.Background
	case by == j.Job.Ranks[k.Rank].Node || j.Mirrors.Relayed(k.Part, k.Epoch, by):
		return manners.Recovery
	}
	return manners.Mirroring
}

// exposed is what this node knows of what a fault would cost the job. It needs no leader for that.
func exposed(j *Job, now time.Time) exposure.Seen {
	s := exposure.Seen{Open: j.Job.Phase == replica.Open, Epoch: j.Job.Epoch, Committed: j.Job.Position.Step, Cadence: lock.Cadence(j.Job)}
	for _, lr := range j.Ranks {
		if w := lr.Arena.Step(); lr.Alive() && w.Epoch() == j.Job.Epoch {
			s.Live = max(s.Live, w.Made())
		}
	}
	if !j.at.Node.Linked() {
		since, remedy := j.at.Node.Unlinked()
		s.Leader, s.Remedy = now.Sub(since), remedy
	}
	return s
}

// SayExposure has launchers and log print what a fault would cost, where that is much.
func SayExposure(j *Job, now time.Time) {
	if line := j.exposure.Look(now, exposed(j, now)); line != "" {
		j.launcher().Note(line)
		j.at.Log.Note2(j.Job, "exposure", line)
	}
}

// Origin is what the job began with, as JSON, for a process; empty: with the program's own state. It is not known yet who of a rank's group loads
// while ranks are still naming their groups. A nil rank is that of a process that has not attached.
func (j *Job) Origin(r *replica.Rank) (text []byte, known bool) {
	switch {
	case j.Job.From == nil:
		return nil, true
	case r == nil:
		return j.Job.From.JSON(nil), true
	case int(*r) >= len(j.Job.Layout.Groups):
		return nil, false
	}
	leads := j.Job.Layout.Leads(*r)
	return j.Job.From.JSON(&leads), true
}
