package launchers

import (
	"fmt"

	"github.com/replicad/replicad/replica"
)

// View is the launchers of one job. It is a value: make one by Pool.Of where it is needed.
type View struct {
	pool *Pool
	job  Job
}

// Of is the launchers of a job.
func (p *Pool) Of(job Job) View { return View{p, job} }

// Note has the launchers of the job print something.
func (v View) Note(text string) {
	job := v.job.Record()
	for _, l := range v.pool.all {
		if l.accepted && !l.done && l.job == job.ID {
			l.note(job.Epoch, text)
		}
	}
}

// NoteRank has the launcher that runs a rank's process print something of the rank.
func (v View) NoteRank(r replica.Rank, text string) {
	job := v.job.Record()
	for _, l := range v.pool.all {
		if l.accepted && l.hello.Job == job.Name && l.runs(r) {
			l.note(job.Epoch, fmt.Sprintf("rank %d: %s", r, text))
		}
	}
}

// Kill has the launcher that runs a rank's process as process pid kill it; false: none does.
func (v View) Kill(r replica.Rank, pid uint64) bool {
	job := v.job.Record()
	for _, l := range v.pool.all {
		if l.accepted && l.hello.Job == job.Name && l.runs(r) && l.starts.of(r).pid == pid {
			l.kill(job.Epoch, r)
			return true
		}
	}
	return false
}

// Lacks has the launchers print, at a commit, what copies of ranks here lack.
func (v View) Lacks(list []replica.Lacking) {
	for _, l := range list {
		v.Note(fmt.Sprintf("step %d lacks %s (%s): a restart from it is not the same run; session.noticed says what to do",
			v.job.Record().Position.Step, clip(l.Text), l.Who()))
	}
}

// clip cuts a text for one line.
func clip(text string) string {
	const most = 300
	if len(text) > most {
		text = replica.Cut(text, most) + "..."
	}
	return text
}
