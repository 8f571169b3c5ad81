package host

import (
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/exposure"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// exposed is what this node knows of what a fault would cost a job. It needs no leader for that.
func exposed(h *Host, lj *localJob, now time.Time) exposure.Seen {
	job := lj.job
	s := exposure.Seen{Open: job.Phase == replica.Open, Epoch: job.Epoch, Committed: job.Position.Step, Cadence: lock.Cadence(job)}
	for _, lr := range lj.ranks {
		if w := lr.arena.Step(); lr.alive() && w.Epoch() == job.Epoch {
			s.Live = max(s.Live, w.Made())
		}
	}
	if h.link == nil {
		s.Leader, s.Remedy = now.Sub(h.unlinked), remedy(h)
	}
	return s
}

// remedy says what it takes to have a leader, as the journal's NoLeader does.
func remedy(h *Host) string {
	if h.notVoting != nil {
		if why := h.notVoting(); len(why) > 0 {
			return strings.Join(why, "; ")
		}
	}
	n := len(h.cfg.Voters)
	return fmt.Sprintf("%d of the %d voters must run and reach each other, and this node must reach them", n/2+1, n)
}

// sayExposure has launchers and log say what a fault would cost, where that is much.
func sayExposure(h *Host, lj *localJob, now time.Time) {
	s := exposed(h, lj, now)
	if line := lj.exposure.Look(now, s); line != "" {
		h.launchers.Of(lj).Note(line)
		h.log.Note2(lj.job, "exposure", line)
	}
}

// addExposure puts it into the node's own status of a job, which stands where no leader answers.
func addExposure(st *control.JobStatus, s exposure.Seen) {
	if !s.Open || s.Live == 0 {
		return
	}
	st.Uncommitted = s.Gap()
	st.AtRisk = exposure.Wide(s.Gap(), s.Cadence)
	if s.Leader > 0 {
		st.Waiting = append(st.Waiting, fmt.Sprintf("this node has heard no leader for %v: nothing is committed, and no lost rank is replaced; %s", s.Leader.Round(time.Second), s.Remedy))
	}
}
