package leader

import (
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// status is the leader's account of its jobs, with their holdings and what they wait for.
func (l *Leader) status() []control.JobStatus {
	out := []control.JobStatus{}
	for _, led := range l.jobs {
		s := control.StatusOf(led.job, led.reports)
		s.Durable, s.DurableError = led.durableNow(), led.durableError
		if led.job.Phase == replica.Open {
			s.Waiting, s.Uncommitted = l.waitsFor(led), uncommitted(led)
			s.AtRisk = risky(led.job, s.Uncommitted)
		}
		if led.job.Phase != replica.Open && led.job.Phase != replica.Ended {
			for code, text := range led.notes {
				s.Waiting = append(s.Waiting, code+": "+text)
			}
			slices.Sort(s.Waiting)
			if text := led.shortOf(); text != "" {
				s.Waiting = append([]string{text}, s.Waiting...)
			}
			s.Waiting = append(s.Waiting, led.recovery.Awaited(l.now())...)
		}
		s.Parts, s.Offers = control.PartsStatus(led.job, l.view.Nodes), control.OffersStatus(led.reports)
		out = append(out, s)
	}
	return out
}
