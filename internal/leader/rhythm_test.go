package leader

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// TestRhythm: what commits wait for is named where they come more seldom than they should, and nothing where they keep up.
func TestRhythm(t *testing.T) {
	const step = 300 * time.Millisecond
	held := func(part replica.Part, mirror bool) replica.Pinned {
		return replica.Pinned{Term: 1, Holder: replica.Holder{Node: map[bool]replica.NodeName{true: "c", false: "a"}[mirror]}, Parts: []replica.Held{{Part: part, Mirror: mirror}}}
	}
	now := time.Second
	// follow has commits each so many steps, of which the mirror of group 3 takes so long.
	follow := func(r *rhythm, job replica.Job, commits int, every replica.Step, mirror, rest time.Duration) *replica.Job {
		for range commits {
			job.Position.Step += every
			job.Committed = replica.Generation(job.Position)
			c := replica.Candidate{Term: 1, N: r.n + 1, Generation: job.Committed}
			pin := func(part replica.Part, mirror bool) {
				p := held(part, mirror)
				p.N = c.N
				r.pinned(now, c, p)
			}
			pin(replica.OfGroup(3), false)
			pin(replica.OfRank(3), true) // the mirror was quicker to say so: of how long it took nothing is known
			pin(replica.OfRank(3), false)
			now += mirror
			pin(replica.OfGroup(3), true)
			now += rest
			r.committed(now, c, &job)
			now += step*time.Duration(every) - mirror - rest
		}
		return &job
	}
	for _, tc := range []struct {
		what         string
		every        replica.Step
		mirror, rest time.Duration
		want         string
	}{
		{"a slow mirror", 5, 1400 * time.Millisecond, 0, "group 3 takes 1.4s to its mirror on node c, a step takes 300ms"},
		{"a slow leader", 5, 0, 1400 * time.Millisecond, "a commit takes 1.4s after the first seal, a step takes 300ms"},
		{"all is well", 1, 100 * time.Millisecond, 0, ""},
		{"ranks that skip", 5, 0, 0, ""},
	} {
		r := rhythm{}
		job := follow(&r, *fixture.Job(), rhythmLeast-1, tc.every, tc.mirror, tc.rest)
		if s := r.status(job); s != nil {
			t.Errorf("%s: after %d commits it says %+v", tc.what, rhythmLeast-1, s)
		}
		job = follow(&r, *job, 20, tc.every, tc.mirror, tc.rest)
		s := r.status(job)
		if s == nil || s.Every() != float64(tc.every) || s.StepUS != step.Microseconds() || s.Why != tc.want || len(r.commits) != rhythmKept {
			t.Errorf("%s: %+v of %d commits, want every %d steps: %q", tc.what, s, len(r.commits), tc.every, tc.want)
		}
		later := *job
		later.Epoch++
		if s := r.status(&later); s != nil {
			t.Errorf("%s: of the epoch before, in the next: %+v", tc.what, s)
		}
		if follow(&r, later, 1, 1, 0, 0); len(r.commits) != 1 {
			t.Errorf("%s: commits of two epochs are measured together", tc.what)
		}
	}
	slow := rhythm{}
	job := *fixture.Job()
	job.Options.Cadence = 5
	if s := slow.status(follow(&slow, job, 8, 5, 1400*time.Millisecond, 0)); s == nil || s.Why != "" || s.Slowest.Node != "c" {
		t.Errorf("commits as often as was asked for: %+v", s)
	}
}
