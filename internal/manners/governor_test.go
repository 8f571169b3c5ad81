package manners

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// node is a node on which a job trains beside transfers: these take its steps' time from as many bytes a second on as it has to spare.
type node struct {
	rng   *rand.Rand
	step  time.Duration // what one takes in calm
	spare float64       // bytes a second
	noise float64       // of a step's time, both ways

	gov   Governor
	now   time.Duration
	steps float64
	moved float64
	limit float64
	why   string
}

// slowdown is by how much steps are longer at a rate: in proportion to what is taken beyond what there is to spare.
func (n *node) slowdown(rate float64) float64 { return 1 + max(0, rate-n.spare)/n.spare/2 }

// run lets the job train for a time, beside a transfer that would move so many bytes a second. It returns by how much its steps were longer, and what moved.
func (n *node) run(t time.Duration, wants float64) (slowdown, rate float64) {
	looks := int(t / LookEvery)
	from, steps := n.moved, n.steps
	for range looks {
		rate := wants
		if n.limit != NoLimit {
			rate = min(rate, n.limit)
		}
		each := n.slowdown(rate) * (1 + n.noise*(2*n.rng.Float64()-1)) * n.step.Seconds()
		n.now += LookEvery
		n.steps += LookEvery.Seconds() / each
		n.moved += rate * LookEvery.Seconds()
		n.limit, n.why = n.gov.Look(n.now, []Job{{ID: replica.JobID{1}, Step: replica.Step(n.steps)}}, uint64(n.moved))
	}
	took := float64(looks) * LookEvery.Seconds()
	return took / n.step.Seconds() / (n.steps - steps), (n.moved - from) / took
}

// Whatever a node has to spare, and however long its steps are, a transfer finds it: steps are hardly longer, and most of what there is to spare is used.
func TestGovernorFinds(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := node{rng: rng, step: time.Duration(math.Exp(rng.Float64()*math.Log(1000)) * float64(3*time.Millisecond)), spare: (64 + 2000*rng.Float64()) * (1 << 20), noise: 0.05 * rng.Float64()}
		n.run(100*n.step+20*time.Second, 0)
		learning := 60*n.step + 30*time.Second
		n.run(learning, 8<<30)
		slow, rate := n.run(10*learning, 8<<30)
		if slow > 1.12 || rate < n.spare/3 {
			t.Errorf("seed %d: %v a step, %.0f MiB/s to spare: steps take %.2f of what they take in calm, beside %.0f MiB/s", seed, n.step, n.spare/(1<<20), slow, rate/(1<<20))
		}
	}
}

func TestGovernor(t *testing.T) {
	calm := func(n *node) { n.run(10*time.Second, 0) }
	fresh := func() *node {
		return &node{rng: rand.New(rand.NewPCG(1, 1)), step: 5 * time.Millisecond, spare: 1 << 40}
	}
	t.Run("nobody trains", func(t *testing.T) {
		n := fresh()
		calm(n)
		if limit, _ := n.gov.Look(n.now+LookEvery, nil, 1<<40); limit != NoLimit {
			t.Errorf("a limit of %g", limit)
		}
	})
	t.Run("nothing is known of a job", func(t *testing.T) {
		n := fresh()
		if n.run(LookEvery, 0); n.limit != least || !strings.Contains(n.why, "not known") {
			t.Errorf("a limit of %g: %s", n.limit, n.why)
		}
	})
	t.Run("a node that never feels anything", func(t *testing.T) {
		n := fresh()
		if calm(n); n.limit != start || n.why != "" {
			t.Fatalf("in calm a limit of %g: %s", n.limit, n.why)
		}
		if n.run(5*time.Second, 64<<30); n.limit != NoLimit {
			t.Errorf("a limit of %g: %s", n.limit, n.why)
		}
	})
	t.Run("a job that is never left alone", func(t *testing.T) {
		n := fresh()
		n.spare = 512 << 20
		n.run(time.Minute, 8<<30)
		if slow, rate := n.run(time.Minute, 8<<30); slow > 1.12 || rate < 256<<20 {
			t.Errorf("steps take %.2f of what they take in calm, beside %.0f MiB/s", slow, rate/(1<<20))
		}
	})
	t.Run("a job that became slower by itself", func(t *testing.T) {
		n := fresh()
		calm(n)
		n.spare = 1 << 30
		n.run(time.Minute, 8<<30)
		n.step *= 2
		n.run(20*time.Second, 8<<30)
		if _, rate := n.run(time.Minute, 8<<30); rate < 256<<20 {
			t.Errorf("%.0f MiB/s: %s", rate/(1<<20), n.why)
		}
	})
	t.Run("a little that moves slowly is no matter", func(t *testing.T) {
		n := fresh()
		calm(n)
		n.spare = 1 << 20
		if n.run(10*time.Second, 4<<20); n.limit != start {
			t.Errorf("a limit of %g: %s", n.limit, n.why)
		}
	})
	t.Run("a cut says why", func(t *testing.T) {
		n := fresh()
		calm(n)
		n.spare = 64 << 20
		if n.run(2*time.Second, 8<<30); !strings.Contains(n.why, "steps take") || !strings.Contains(n.why, "5ms without") {
			t.Errorf("a limit of %g: %q", n.limit, n.why)
		}
	})
	t.Run("a step that does not end", func(t *testing.T) {
		n := fresh()
		n.step = 2 * time.Second
		n.run(time.Minute, 0)
		n.spare = 1 << 10
		if n.run(3*time.Second, 8<<30); n.limit >= start {
			t.Errorf("a limit of %g, though a step takes longer than any did in calm", n.limit)
		}
	})
	t.Run("a job that goes back, or is away", func(t *testing.T) {
		n := fresh()
		calm(n)
		n.steps -= 100
		n.run(time.Second, 256<<20)
		n.now += time.Minute
		if n.run(time.Second, 256<<20); strings.Contains(n.why, "steps take") {
			t.Errorf("a limit of %g: %s", n.limit, n.why)
		}
		n.gov.Look(n.now+2*forgotten, nil, 0)
		if len(n.gov.jobs) != 0 {
			t.Error("what has not trained for so long is not forgotten")
		}
	})
}
