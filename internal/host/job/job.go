package job

import (
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/exposure"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/lacks"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/host/remarks"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Job is a node's part of a job.
type Job struct {
	Job *replica.Job // its record, as the leader has it
	at  *At
	Here
	candidacy
	fencing
	reports
	spell     journal.CommitSpell // what the log was not told yet of commits
	clocks    recovery.Keep       // what a leader has handed out of the job's clocks, for the next one
	Bad       []replica.Held      // copies here that failed their digest since the job last ran
	BadDisk   []replica.Held      // and durable parts, when they were read here
	lacks     lacks.Book          // what copies of ranks here lack
	remarks   remarks.Book        // what ranks and launchers here report of the job
	launched  *launchers.Book     // what its launchers here know of it
	exposure  exposure.Watch      // what a fault would cost now
	admission *admission.Book     // what was read for processes that want its ranks
}

// fencing is how the newest closed epoch ends on the node.
type fencing struct {
	Fenced     replica.Epoch // fence words raised to
	SettleBy   time.Time     // after it, what is unfinished is torn
	SettleTime time.Duration // from the fence to SettleBy
	StopBy     time.Time     // after it, ranks that did not stop at the end of the job are killed
}

// New is a job that the leader has named, and of which nothing is known yet.
func New(record *replica.Job, at *At) *Job {
	return &Job{Job: record, at: at, candidacy: newCandidacy(),
		Here:  Here{id: record.ID, Ranks: map[replica.Rank]*rank.Rank{}, Mirrors: at.Mirrors.Of(record.ID)},
		lacks: lacks.Book{}, launched: launchers.NewBook(), admission: admission.NewBook()}
}

// View is the job as rooms see it.
func (j *Job) View() room.JobView {
	v := room.JobView{Job: j.Job, Candidate: j.Candidate, CandidateAt: j.CandidateAt, WaitsAt: j.waitsFrom(j.Job.Position), Fenced: j.Fenced,
		Retired: j.Retired, Mirrors: j.Mirrors.All()}
	for _, r := range slices.Sorted(maps.Keys(j.Ranks)) {
		lr := j.Ranks[r]
		v.Ranks = append(v.Ranks, room.Rank{Rank: r, Incarnation: lr.Incarnation, Arena: lr.Arena, Alive: lr.Alive(),
			Waits: lr.Alive() && lr.Stopped() && !lr.Superseded(j.Job) && lr.Finishing == 0})
	}
	return v
}

// Record is the job's record, as launchers and processes on their way see it, and so are the methods that follow.
func (j *Job) Record() *replica.Job { return j.Job }

// Launched is what the job's launchers here know of it.
func (j *Job) Launched() *launchers.Book { return j.launched }

// ClosedAt is when this node closed the newest epoch that it has closed.
func (j *Job) ClosedAt() time.Time { return j.SettleBy.Add(-j.SettleTime) }

// Admission is what was read for processes that want the job's ranks.
func (j *Job) Admission() *admission.Book { return j.admission }

// launcher is the job's launchers here.
func (j *Job) launcher() launchers.View { return j.at.Launchers.Of(j) }
