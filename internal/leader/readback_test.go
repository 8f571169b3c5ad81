package leader

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/replica"
)

// lies is what there is of the job: steps with their states.
func (c *chair) lies() string {
	c.t.Helper()
	list, err := c.disk.List(c.t.Context(), "job")
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, g := range list {
		out = append(out, fmt.Sprintf("%d %s", g.Generation.Step, g.State))
	}
	return strings.Join(out, ", ")
}

// wroteOne puts a generation on the shelf, lets damage happen, and has the leader hear of the write.
func (c *chair) wroteOne(led *ledJob, step replica.Step, damage func()) {
	c.t.Helper()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, step))
	damage()
	was := led.job
	led.job = fixture.Changed(was, func(j *replica.Job) { j.Durable = fixture.Gen(1, step) })
	c.wrote(was, led.job)
	led.durable.Learn(c.now(), durable.Changed{Job: led.job})
}

// TestReadBackBeforeAnythingGoes: a disk flips a byte of each generation from the second on. The first one stays, for as long as that lasts; once writes are whole
// again, it goes for the sake of what was read.
func TestReadBackBeforeAnythingGoes(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	c.cfg.Reread = RereadConfig{Back: 64 << 30, Every: 168 * time.Hour, Rate: 64 << 30, Keep: replica.Keep{Last: 2}}
	led := c.knows(fixture.Job())
	n1 := c.node("n1", 11)
	c.beginReread(t.Context())
	c.wroteOne(led, 25, func() {})
	c.rereadsAll()
	for step := replica.Step(50); step <= 150; step += 25 {
		c.wroteOne(led, step, func() { rotten(t, dir, fmt.Sprintf("step-%08d.e1/group-0.w1.safetensors", step)) })
		c.rereadsAll()
	}
	const rotting = "150 damaged, 125 damaged, 100 damaged, 75 damaged, 50 damaged, 25 good"
	if got := c.lies(); got != rotting {
		t.Errorf("there lie %s, want %s", got, rotting)
	}
	c.wroteOne(led, 175, func() {})
	c.rereadsAll()
	c.wroteOne(led, 200, func() {})
	c.rereadsAll()
	if got := c.lies(); got != "200 good, 175 good" {
		t.Errorf("there lie %s", got)
	}
	if n := len(fixture.Only[control.Tell](told(t, n1))); n != 0 {
		t.Errorf("launchers are told %d times of the newest, which the look at it does", n)
	}
}

// TestReadBackOfAnotherLeader: one that leads since reads back what the one before has not, and then lets go of what is kept no more.
func TestReadBackOfAnotherLeader(t *testing.T) {
	c := newChair(t)
	c.shelf()
	c.cfg.Reread = RereadConfig{Back: 64 << 30, Keep: replica.Keep{Last: 1}}
	led := c.knows(fixture.Job())
	for _, step := range []replica.Step{25, 50, 75} {
		c.wroteOne(led, step, func() {})
	}
	if got := c.lies(); got != "75 unread, 50 unread, 25 unread" {
		t.Fatalf("there lie %s", got)
	}
	c.beginReread(t.Context())
	c.rereadsAll()
	if got := c.lies(); got != "75 good" {
		t.Errorf("there lie %s", got)
	}
}

// TestWritesWaitForReadBack: while two generations of the run are unread the status says so, and it says so no more once one was read.
func TestWritesWaitForReadBack(t *testing.T) {
	c := newChair(t)
	c.shelf()
	c.cfg.Reread = RereadConfig{Back: 64 << 30, Keep: replica.Keep{Last: 3}}
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Options.DurableEvery = 25 }))
	c.beginReread(t.Context())
	c.wroteOne(led, 25, func() {})
	c.wroteOne(led, 50, func() {})
	const waits = "every 25 steps; the next one waits for 0s until one of the steps 25, 50 was read back (readback_rate)"
	if got := led.durable.Pace(c.now()); got != waits {
		t.Errorf("it says %q", got)
	}
	c.rereadsAll()
	if got := led.durable.Pace(c.now()); got != "every 25 steps" {
		t.Errorf("once both are read: %q", got)
	}
	// What the disk does not let be read holds up nothing.
	c.refused = "step-00000075.e1.json"
	c.wroteOne(led, 75, func() {})
	c.rereadsAll()
	c.wroteOne(led, 100, func() {})
	c.wroteOne(led, 125, func() {})
	if got := led.durable.Pace(c.now()); !strings.Contains(got, "the steps 100, 125 was") {
		t.Errorf("beside one that can't be read: %q", got)
	}
}
