package host

import (
	"time"

	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/replica"
)

// launcherOwner is the host as its launchers see it.
type launcherOwner struct{ *Host }

func (h launcherOwner) Informed() bool { return h.informed }

func (h launcherOwner) Era() replica.Era { return h.era }

func (h launcherOwner) Known(id replica.JobID) launchers.Job {
	if lj := h.jobs[id]; lj != nil {
		return lj
	}
	return nil // a nil *localJob in an interface would not be nil
}

func (h launcherOwner) Named(name string) launchers.Job {
	if lj := h.jobNamed(name); lj != nil {
		return lj
	}
	return nil
}

func (h launcherOwner) All() (jobs []launchers.Job) {
	for _, lj := range h.jobs {
		jobs = append(jobs, lj)
	}
	return jobs
}

func (h launcherOwner) Send(msg any) { h.send(msg) }

func (h launcherOwner) MayCreate(user uint32) bool { return h.admission.May(user, replica.JobID{}) }

func (h launcherOwner) NextRequest() uint64 { return h.nextRequest() }

func (h launcherOwner) Report(id replica.JobID) { h.report(h.jobs[id]) }

func (h launcherOwner) Remark(id replica.JobID, notes []replica.Remark) {
	lj := h.jobs[id]
	lj.said.Say(replica.ByLauncher, 0, notes)
	h.saySaid(lj)
}

func (h launcherOwner) Expects(job *replica.Job, r replica.Rank) bool {
	return h.desk.Waits(job.ID, r) || h.admission.Expects(job.Name, r)
}

func (h launcherOwner) Died(id replica.JobID, r replica.Rank) {
	lj := h.jobs[id]
	h.rankDied(lj, lj.ranks[r])
}

func (h launcherOwner) Brought(id replica.JobID, e replica.Epoch) (replica.Tier, time.Duration) {
	return h.restores.Brought(id, e)
}

func (h launcherOwner) HasStore() bool { return h.store != nil }

func (h launcherOwner) Halted(pid int, start uint64) bool { return h.processes.Halted(pid, start) }

func (h launcherOwner) HaltedChild(pid, parent int) bool { return h.processes.HaltedChild(pid, parent) }

// Record is the job as launchers see it, and so are the methods that follow.
func (lj *localJob) Record() *replica.Job { return lj.job }

func (lj *localJob) Launched() *launchers.Book { return lj.launched }

func (lj *localJob) ClosedAt() time.Time { return lj.settleBy.Add(-lj.settleTime) }

func (lj *localJob) Rank(r replica.Rank) (is launchers.Rank, known bool) {
	lr := lj.ranks[r]
	if lr == nil {
		return is, false
	}
	is = launchers.Rank{PID: uint64(lr.pid), Alive: lr.alive(), Stopped: lr.stopped(), Trains: lr.life == training, Left: lr.left(),
		Halted: lr.halted, Ending: lr.ending > 0, Initial: lr.initial, Loaded: lr.loaded}
	if is.Trains {
		is.Word = lr.arena.Step()
	}
	return is, true
}
