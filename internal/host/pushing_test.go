package host

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
)

// TestPushesAreSaidWhileACommitWaits: how far pushes are is said once a commit has waited for two seconds, of its candidate alone.
func TestPushesAreSaidWhileACommitWaits(t *testing.T) {
	now := time.Now()
	job := fixture.Job()
	g := replica.Generation{Epoch: job.Epoch, Step: job.Position.Step + 1}
	lj := &localJob{job: job, candidacy: newCandidacy()}
	moving := func(id replica.JobID, of replica.Generation) []mover.Moving {
		if id != job.ID || of != g {
			t.Errorf("asked of %v of job %v", of, id)
		}
		return []mover.Moving{{Line: mover.Line{Node: "n2"}, Part: replica.OfGroup(0), Generation: g, Bytes: 7, Why: strings.Repeat("x", 1000)}}
	}
	if _, due := pushReport(lj, moving, now); due {
		t.Error("said without a candidate")
	}
	lj.obey(replica.Candidate{Job: job.ID, Term: 7, N: 1, Position: replica.Position(g), Generation: g}, now, 0)
	if _, due := pushReport(lj, moving, now.Add(pushesSaidAfter-1)); due {
		t.Error("said at once")
	}
	r, due := pushReport(lj, moving, now.Add(pushesSaidAfter))
	if !due || r.Job != job.ID || r.Generation != g || len(r.Pushes) != 1 || r.Pushes[0].To != "n2" || r.Pushes[0].Bytes != 7 || len(r.Pushes[0].Why) != maxPushWhy {
		t.Errorf("%+v, %v", r, due)
	}
	nothing := func(replica.JobID, replica.Generation) []mover.Moving { return nil }
	if _, due := pushReport(lj, nothing, now.Add(time.Minute)); due {
		t.Error("said with nothing to say")
	}
}
