package leader

import (
	"reflect"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// The short form of news is for what it can carry: a commit and nothing else. Anything more goes as a change.
func TestShortNewsOfACommitAlone(t *testing.T) {
	was := fixture.Job()
	commit := func(j *replica.Job) {
		j.Position, j.Committed = replica.Position{Epoch: 3, Step: 6}, fixture.Gen(3, 6)
		j.Parts = []replica.PartRoot{{Part: replica.OfGroup(0), Root: replica.Digest{6}}}
	}
	if !onlyCommitted(was, fixture.Changed(was, commit)) {
		t.Error("a commit alone is not told in short")
	}
	if onlyCommitted(was, fixture.Changed(was, func(*replica.Job) {})) {
		t.Error("no commit is told as one")
	}
	carried := []string{"Position", "Committed", "Parts", "LastIndex"}
	for i := range reflect.TypeFor[replica.Job]().NumField() {
		field := reflect.TypeFor[replica.Job]().Field(i).Name
		if slices.Contains(carried, field) {
			continue
		}
		is, n := fixture.Changed(was, commit), uint64(50)
		fixture.Fill(reflect.ValueOf(is).Elem().Field(i), &n)
		if onlyCommitted(was, is) {
			t.Errorf("a commit beside a change of %s is told in short: the nodes never hear of it", field)
		}
	}
}

// News go out in the form that fits them.
func TestFollowTellsNodes(t *testing.T) {
	c := newChair(t)
	n := c.node("n2", 22)
	job := fixture.Job()
	before := c.view
	next := func(j *replica.Job) {
		before = c.view
		c.view.Index++
		c.view.Jobs = map[replica.JobID]*replica.Job{j.ID: j}
		c.Leader.follow(t.Context(), before)
		job = j
	}
	forms := func() (changes, short int) {
		msgs := told(t, n)
		return len(fixture.Only[control.Change](msgs)), len(fixture.Only[control.Progress](msgs))
	}
	next(job)
	if changes, short := forms(); changes != 1 || short != 0 {
		t.Errorf("a new job is told by %d changes and %d short news", changes, short)
	}
	next(fixture.Changed(job, func(j *replica.Job) { j.Position.Step, j.Committed.Step = 6, 6 }))
	if changes, short := forms(); changes != 0 || short != 1 {
		t.Errorf("a commit is told by %d changes and %d short news", changes, short)
	}
	next(fixture.Changed(job, func(j *replica.Job) {
		j.Position.Step, j.Committed.Step, j.Mirrors = 7, 7, [][]replica.NodeName{{"n3"}, {"n1"}}
	}))
	if changes, short := forms(); changes != 1 {
		t.Errorf("a commit with other mirrors is told by %d changes and %d short news", changes, short)
	}
	next(fixture.Closed(job))
	if changes, short := forms(); changes != 1 || short != 0 {
		t.Errorf("a fault is told by %d changes and %d short news", changes, short)
	}
}

// A job that goes on from its durable tier has the UUID of the run that ended. That one's end was proposed, this one's was not: it could
// not finish, and its ranks waited in rp_leave for ever; and its nodes were found silent at once, since the last fence was long ago. Candidates are
// numbered on: a node passes over numbers that it has seen.
func TestFollowAJobThatIsResumed(t *testing.T) {
	c := newChair(t)
	c.node("n1", 11)
	next := func(j *replica.Job) *ledJob {
		before := c.view
		c.view.Index++
		c.view.Jobs = map[replica.JobID]*replica.Job{j.ID: j}
		c.Leader.follow(t.Context(), before)
		return c.jobs[j.ID]
	}
	led := next(fixture.Job())
	led.disputing = true
	committer, rules := led.committer, led.recovery
	ended := fixture.Changed(led.job, func(j *replica.Job) { j.Phase, j.ClosedEpoch = replica.Ended, j.Epoch })
	if next(ended); !led.disputing || led.recovery != rules {
		t.Error("a job that has ended is led anew")
	}
	again := next(fixture.Changed(ended, func(j *replica.Job) { j.Phase, j.Epoch = replica.Opening, j.Epoch+1 }))
	if again.disputing || again.committer != committer || again.recovery == rules {
		t.Errorf("resumed: disputing %v, another committer %v, the same rules of recovery %v", again.disputing, again.committer != committer, again.recovery == rules)
	}
}
