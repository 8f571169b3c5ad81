package lock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// growing is a small open job, two ranks of one group, that everybody holds all of.
func growing(t *testing.T) *world {
	t.Helper()
	w := newWorld()
	for _, line := range []string{"node a", "node b", "node c", "job lm groups=0,0 min=2", "begin 1", "claim 0 a", "claim 1 b", "plan init", "resume"} {
		var out strings.Builder
		if err := w.run(line, &out); err != nil || strings.Contains(out.String(), "refused") {
			t.Fatalf("%s: %v %s", line, err, out.String())
		}
	}
	return w
}

// Whatever follows what, up to ten entries deep: no entry leaves a growth half done, and none costs a committed step.
func TestGrowthExhaustively(t *testing.T) {
	verbs := []string{"commit", "grow 5 recipe=x", "plan init", "resume", "fault process-dead rank=1", "claim 1 c", "plan"}
	depth := 10
	if testing.Short() {
		depth = 8
	}
	var states, grown, back int
	seen := map[string]bool{}
	var walk func(w *world, line []string)
	walk = func(w *world, line []string) {
		j := w.current()
		key := fmt.Sprint(len(line), *j, j.Plan, j.Growth, j.GroupGeometry)
		if len(line) == depth || seen[key] {
			return
		}
		seen[key] = true
		for _, verb := range verbs {
			next := *w
			next.state = FromView(w.state.View())
			c, ok := next.small(verb)
			if !ok {
				continue
			}
			before := next.state.View()
			next.index++
			o := next.state.Apply(next.index, c)
			after := next.state.View()
			if err := Check(before, after); err != nil {
				t.Fatalf("%v, %s: %v", line, verb, err)
			}
			if !o.Changed {
				continue
			}
			states++
			was, is := before.Jobs[w.job], after.Jobs[w.job]
			if is.Position.Step < was.Position.Step {
				t.Fatalf("%v, %s: from %v back to %v", line, verb, was.Position, is.Position)
			}
			switch {
			case was.Growth == nil || is.Growth != nil:
			case is.Phase == replica.Open:
				grown++
			default:
				back++
				if is.GroupGeometry[0] != was.Growth.Geometries[0] || string(is.Recipe) != string(was.Growth.Recipe) || is.Phase != replica.Closed {
					t.Fatalf("%v, %s: %+v", line, verb, is)
				}
			}
			walk(&next, append(line[:len(line):len(line)], verb))
		}
	}
	walk(growing(t), nil)
	if states < 100 || grown < 10 || back < 10 {
		t.Errorf("%d entries, %d growths, %d taken back", states, grown, back)
	}
}

// small is a command in a world of which every node holds everything.
func (w *world) small(verb string) (replica.Command, bool) {
	j := w.current()
	hold := func(g replica.Generation) {
		for _, n := range []replica.NodeName{"a", "b", "c"} {
			for _, p := range allParts(j) {
				w.hold(n, p, g)
			}
		}
	}
	switch {
	case verb == "commit":
		g := replica.Generation{Epoch: j.Epoch, Step: j.Position.Step + 1}
		hold(g)
		verb = fmt.Sprintf("commit %d/%d", g.Epoch, g.Step)
	case verb == "plan init" && j.Growth != nil:
		hold(grownAt(j))
	case strings.HasPrefix(verb, "claim"):
		verb += fmt.Sprint(" nonce=", w.index)
	}
	a := parse(verb)
	c, err := w.command(a.word(0), a)
	return c, err == nil
}

// What the state has no room for is not proposed.
func TestAGrowthThatDoesNotFit(t *testing.T) {
	w := growing(t)
	c := replica.Grow{Job: w.job, Epoch: 1, Geometries: []replica.Digest{{5}}, Recipe: make([]byte, replica.MaxRecipe)}
	if err := Fits(w.state.View(), c); err != nil {
		t.Error(err)
	}
	v := w.state.View()
	full := *v.Jobs[w.job]
	full.Recipe = make([]byte, MaxView)
	v.Jobs = map[replica.JobID]*replica.Job{w.job: &full}
	if err := Fits(v, c); err == nil || !strings.Contains(err.Error(), "recipe") {
		t.Error(err)
	}
	c.Recipe = append(c.Recipe, 0)
	if o := w.apply("grow", c, new(strings.Builder)); o.Err == nil || !strings.Contains(o.Err.Error(), "at most 65536") {
		t.Error(o.Err)
	}
}
