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
	if j := h.jobs.of(id); j != nil {
		return j
	}
	return nil // a nil *job.Job in an interface would not be nil
}

func (h launcherOwner) Named(name string) launchers.Job {
	if j := h.jobs.named(name); j != nil {
		return j
	}
	return nil
}

func (h launcherOwner) All() (jobs []launchers.Job) {
	for _, j := range h.jobs.all {
		jobs = append(jobs, j)
	}
	return jobs
}

func (h launcherOwner) Send(msg any) { h.send(msg) }

func (h launcherOwner) MayCreate(user uint32) bool { return h.admission.May(user, replica.JobID{}) }

func (h launcherOwner) NextRequest() uint64 { return h.nextRequest() }

func (h launcherOwner) Report(id replica.JobID) { h.jobs.of(id).Report() }

func (h launcherOwner) Remark(id replica.JobID, notes []replica.Remark) {
	h.jobs.of(id).Remark(notes)
}

func (h launcherOwner) Expects(job *replica.Job, r replica.Rank) bool {
	return h.desk.Waits(job.ID, r) || h.admission.Expects(job.Name, r)
}

func (h launcherOwner) Died(id replica.JobID, r replica.Rank) {
	h.jobs.of(id).ProcessDied(r)
}

func (h launcherOwner) Brought(id replica.JobID, e replica.Epoch) (replica.Tier, time.Duration) {
	return h.restores.Brought(id, e)
}

func (h launcherOwner) HasStore() bool { return h.store != nil }

func (h launcherOwner) Halted(pid int, start uint64) bool { return h.processes.Halted(pid, start) }

func (h launcherOwner) HaltedChild(pid, parent int) bool { return h.processes.HaltedChild(pid, parent) }
