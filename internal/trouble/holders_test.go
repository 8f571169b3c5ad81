//go:build cgo

package trouble_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
)

// TestDrainedNodeServes: a node is drained, and while the program that takes its rank over still starts, the other holder's memory is
// lost for good: the job goes on from the drained node's memory, at the committed step or a newer one.
// The planner passed over quarantined nodes, and the job ended beside the memory that it needed.
func TestDrainedNodeServes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	voter, lost, drained := c.nodes[0], c.nodes[1], c.nodes[2]
	other := lost.run("job", 2, rankSpec{}, "--ranks", "0")
	drained.run("job", 2, rankSpec{}, "--ranks", "1").await("step", fields{"step": 20})
	hold := filepath.Join(c.Dir, "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	spare := voter.run("job", 2, rankSpec{Stuck: hold}, "--spare", "--capacity", "2")
	voter.statusWhen(func(s status) bool { return len(s.job("job").Offers) > 0 })
	if code, out := voter.verb("node", "drain", "n3", "--timeout", "1s"); code != exitFailed || !strings.Contains(out, "draining node n3 has not ended within 1s, and goes on") {
		t.Errorf("a drain whose rank does not start: code %d: %s", code, out)
	}
	starting := spare.await("stuck", nil) // rank 1 moves, and its program takes its time
	step := voter.statusWhen(linked).job("job").Position.Step
	other.kill()
	lost.die()
	voter.loses("n2")
	if err := syscall.Kill(int(starting.fields["pid"].(float64)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	at := 0 // a step beyond the committed one, where that is whole in memory
	for rank := range 2 {
		o := spare.await("loaded", fields{"rank": rank})
		at = int(o.fields["step"].(float64))
		if at < step || o.fields["source"] == "durable" {
			t.Errorf("want at least step %d from memory: %s", step, o.text)
		}
	}
	spare.await("step", fields{"step": at + 5})
}

// TestDrainOfTheLastOtherNode: it says what it costs, and is done only where the operator accepts that.
func TestDrainOfTheLastOtherNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	l := c.nodes[0].run("job", 1, rankSpec{})
	l.await("step", fields{"step": 20})
	code, out := c.nodes[0].verb("node", "drain", "n2")
	if code != exitFailed {
		t.Errorf("code %d", code)
	}
	contains(t, out, "node n2 is not drained: job job", "on at most 1 nodes instead of 2", "all its ranks would run on node n1, whose loss would end the job", "--degrade")
	if q := c.nodes[0].statusWhen(linked).job("job").Quarantined; len(q) != 0 {
		t.Errorf("quarantined: %v", q)
	}
	if code, out := c.nodes[0].verb("node", "drain", "n2", "--degrade"); code != 0 {
		t.Errorf("code %d: %s", code, out)
	}
	at := c.nodes[0].statusWhen(linked).job("job").Position.Step
	c.nodes[0].statusWhen(func(s status) bool { j := s.job("job"); return j.Degraded && j.Position.Step > at })
}

// TestDegradedResumeThenLoss: the job resumes at a step whose mirror has not got it, and the node that alone holds it is lost before the
// next commit: the job goes back to what was committed before, from the mirror's memory.
func TestDegradedResumeThenLoss(t *testing.T) {
	t.Parallel()
	voter, home, mirror := pair(t, func(c *config.Config) {
		c.Timing.SilentAfter, c.Timing.Ack, c.Timing.ResumeGrace, c.Timing.HolderGrace = time.Minute, time.Minute, time.Second, time.Second
	})
	spec := rankSpec{Floats: 8 << 20}
	l := home.run("job", 1, spec)
	voter.daemon.await("committed", nil)
	spare := voter.run("job", 1, spec, "--spare")
	voter.statusWhen(func(s status) bool { return len(s.job("job").Offers) > 0 })

	mirror.daemon.Signal(syscall.SIGSTOP) // nothing is committed, while the rank goes on
	at := voter.statusWhen(linked).job("job").Position.Step
	l.await("step", fields{"step": at + 20})
	committed := voter.statusWhen(linked).job("job").Position.Step
	from, mark := l.mark(), voter.daemon.mark()
	if err := syscall.Kill(voter.statusWhen(linked).job("job").Ranks[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.awaitFrom(from, "attached", nil)
	mirror.daemon.Signal(syscall.SIGCONT) // for as long as it takes to acknowledge the fence
	planned := voter.daemon.awaitFrom(mark, "planned", nil)
	mirror.daemon.Signal(syscall.SIGSTOP)
	resumed := voter.daemon.awaitFrom(mark, "resumed", nil)
	t.Logf("committed %d; %s; %s", committed, planned.text, resumed.text)

	mark = voter.daemon.mark()
	l.kill()
	home.die()
	mirror.daemon.Signal(syscall.SIGCONT)
	home.launch() // with another memory
	voter.daemon.awaitFrom(mark, "planned", nil)
	o := spare.await("loaded", nil)
	if got := int(o.fields["step"].(float64)); got < committed || o.fields["source"] == "durable" {
		t.Errorf("want at least step %d from memory: %s", committed, o.text)
	}
	spare.await("step", fields{"step": int(o.fields["step"].(float64)) + 3})
}
