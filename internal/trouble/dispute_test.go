//go:build cgo

package trouble_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// runRanks starts a rank of a job on each of these nodes; that on the node with index bad poisons its weights from step 30 on.
func runRanks(nodes []*node, bad int, flags ...string) (launchers []*process) {
	for i, n := range nodes {
		spec := rankSpec{}
		if i == bad {
			spec.Poison = 30
		}
		launchers = append(launchers, n.run("job", len(nodes), spec, append([]string{"--ranks", fmt.Sprint(i)}, flags...)...))
	}
	return launchers
}

var disputed = regexp.MustCompile(`"event":"dispute".*"generation":"\((\d+),`)

// disputes are the epochs of those that a leader logged. A state that went wrong once may show at several steps of its epoch.
func disputes(n *node) (epochs []string) {
	for _, m := range disputed.FindAllStringSubmatch(n.daemon.output(), -1) {
		epochs = append(epochs, m[1])
	}
	return slices.Compact(epochs)
}

// loadedOnlyGood fails the test if a rank found other values than it should after a load.
func loadedOnlyGood(t *testing.T, launchers []*process) {
	t.Helper()
	for _, l := range launchers {
		if l.saw(func(l line) bool { return strings.Contains(l.text, "after a load") }) {
			t.Errorf("%s loaded what it should not have", l.Name)
		}
	}
}

// TestOutvotedRankIsReplaced: one of three ranks writes a NaN from step 30 on. The rank is named, its node is left for the one that
// has a process to spare, nobody loads the NaN, and the job goes on.
func TestOutvotedRankIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3", "n4")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	spare := c.nodes[3].run("job", 3, rankSpec{}, "--spare", "--capacity", "1")
	c.nodes[0].statusWhen(func(s status) bool { return len(s.job("job").Offers) > 0 }) // else n2 takes the rank again
	launchers := append(runRanks(c.nodes[:3], 1), spare)
	d := c.nodes[0].daemon.await("dispute", fields{"group": 0, "majority": true})
	if s, r := fmt.Sprint(d.fields["suspects"]), fmt.Sprint(d.fields["ranks"]); s != "[1]" || r != "[0 1 2]" || len(d.fields["roots"].([]any)) != 3 {
		t.Errorf("suspects %s of ranks %s: %s", s, r, d.text)
	}
	c.nodes[0].daemon.await("quarantined", fields{"node": "n2"})
	spare.await("loaded", fields{"rank": 1})
	for _, text := range []string{"(ranks differ at step ", "ranks differ: group 0, step "} { // and in which regions, with the remedy
		launchers[0].awaitText(0, text)
	}
	j := c.nodes[0].statusWhen(linked).job("job")
	spare.await("step", fields{"rank": 1, "step": j.Disputes[0].Step + 10})
	for _, d := range j.Disputes {
		if !slices.Equal(d.Suspects, []int{1}) || d.Step < 30 {
			t.Errorf("dispute: %+v", d)
		}
	}
	epochs := []string{"1"}
	if c.nodes[0].daemon.saw(func(l line) bool { return strings.Contains(l.text, "rank 1 is started anew there") }) {
		epochs = append(epochs, "2") // the rules give n2's process a second try where the others held nothing as new, or n4 was not heard
	}
	if n := disputes(c.nodes[0]); !slices.Equal(n, epochs) || !slices.Equal(j.Quarantined, []string{"n2"}) {
		t.Errorf("disputes of epochs %q, status: %+v", n, j)
	}
	_, text := call(t, "status", "--socket", c.nodes[0].cfg.AdminSocket)
	contains(t, text, "group 0 at step ", "suspect: rank 1", "rank 1 on n2", "quarantined")
	loadedOnlyGood(t, launchers)
}

// TestOutvotedAgainEnds: nobody else can take the rank that is outvoted; its process is started anew, once, and then the job
// ends with a reason that says all there is to say.
func TestOutvotedAgainEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	launchers := runRanks(c.nodes, 1)
	for _, l := range launchers {
		if code := l.exit(); code != exitDoNotRequeue {
			t.Errorf("%s ends with code %d", l.Name, code)
		}
	}
	c.nodes[0].daemon.await("ended", nil) // behind all disputes
	j := c.nodes[0].statusWhen(linked).job("job")
	contains(t, j.EndReason, "do not requeue: group 0, step ", " of epoch 2: rank 1 (n2)", "outvoted 2 times", `region "weights"`, "rank 0 on n1: ", "rank 2 on n3: ")
	if n := disputes(c.nodes[0]); !slices.Equal(n, []string{"1", "2"}) {
		t.Errorf("disputes of epochs %q, want two", n)
	}
	loadedOnlyGood(t, launchers)
}

// TestSplitEnds: two ranks disagree again and again, and nobody can be named: back to the agreed step, then
// to the durable tier, then the end.
func TestSplitEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	sound := filepath.Join(t.TempDir(), "sound")
	if err := os.WriteFile(sound, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var launchers []*process
	for i, n := range c.nodes {
		launchers = append(launchers, n.run("job", 2, rankSpec{Poison: 30 * i, Sound: sound}, "--ranks", fmt.Sprint(i), "--durable-every", "10"))
	}
	c.nodes[0].daemon.await("durable", nil) // there is something to go back to
	if err := os.Remove(sound); err != nil {
		t.Fatal(err)
	}
	for _, l := range launchers {
		if code := l.exit(); code != exitDoNotRequeue {
			t.Errorf("%s ends with code %d", l.Name, code)
		}
	}
	j := c.nodes[0].statusWhen(func(s status) bool { return linked(s) && s.job("job").Phase == "ended" }).job("job") // once its newest commit is on disk
	contains(t, j.EndReason, "do not requeue: group 0, step ", " of epoch 3", "no root has a majority", "the durable tier, did not help", `region "weights"`, "rank 0 on n1: ", "rank 1 on n2: ")
	c.nodes[0].daemon.await("ended", nil) // behind all disputes
	if n := disputes(c.nodes[0]); !slices.Equal(n, []string{"1", "2", "3"}) {
		t.Errorf("disputes of epochs %q, want three", n)
	}
	c.nodes[0].daemon.await("planned", fields{"reason": "the durable tier"})
	loadedOnlyGood(t, launchers)
}
