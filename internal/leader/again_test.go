package leader

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/leader/reread"
	"github.com/replicad/replicad/replica"
)

// rereadsAll has the leader do what the room wants until it wants nothing at this time.
func (c *chair) rereadsAll() {
	c.t.Helper()
	for range 100 {
		c.rereads()
		c.work.Wait()
		if len(c.in) == 0 {
			return
		}
		for range len(c.in) {
			if ev, ok := (<-c.in).(rereadLearned); ok {
				c.handle(c.t.Context(), ev)
			}
		}
	}
	c.t.Fatal("it never comes to rest")
}

// early has the room of the chair want its first list now.
func (c *chair) early() {
	c.again.room = reread.New(time.Now().Add(-time.Hour), c.cfg.Reread.Every)
	c.again.wake = time.Now()
}

// state is what a generation's mark says.
func (c *chair) state(step replica.Step) string {
	c.t.Helper()
	list, err := c.disk.List(c.t.Context(), "job")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, g := range list {
		if g.Generation.Step == step {
			return string(g.State)
		}
	}
	return "gone"
}

// The leader reads again what lies in the durable directory, whoever's it is, and says what it finds bad of a job that runs.
func TestDurableGenerationsAreReadAgain(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	for _, step := range []replica.Step{4, 6} {
		c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, step))
	}
	c.writes("other", replica.ClusterID{9}, replica.JobID{9}, fixture.Gen(1, 5))
	rotten(t, dir, "step-00000004.e1/group-0.w1.safetensors")
	c.cfg.Reread = RereadConfig{Back: 64 << 30, Every: time.Hour, Rate: 64 << 30, Keep: replica.Keep{Last: 3}}
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Durable = fixture.Gen(1, 6) }))
	n1 := c.node("n1", 11)
	led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Phase = replica.Closed })
	c.beginReread(t.Context())
	c.again.room.Learn(time.Now(), reread.Busy{Is: true})
	c.rereadsAll()
	if got := c.state(6); got != "unread" {
		t.Errorf("right after it began to lead: %s", got)
	}
	c.early()
	c.again.busy = false
	c.rereadsAll()
	if got := c.state(6); got != "unread" {
		t.Errorf("while a job recovers: %s", got)
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Phase = replica.Open })
	c.rereadsAll()
	if c.state(6) != "good" || c.state(4) != "damaged" {
		t.Errorf("step 6 is %s, step 4 %s", c.state(6), c.state(4))
	}
	if other, err := c.disk.List(t.Context(), "other"); err != nil || len(other) != 1 || other[0].State != find.Good {
		t.Errorf("of another name: %+v, %v", other, err)
	}
	const want = "warning: the durable generation of step 4, which is kept, failed a read and counts for nothing: group-0.w1.safetensors, chunk 2: digest differs"
	if news := fixture.Only[control.Tell](told(t, n1)); len(news) != 1 || news[0].Text != want {
		t.Errorf("launchers are told %+v", news)
	}
	if n := c.log.Count("durable_skipped"); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
	// One that was written since is read when its time has come, and nothing of a former leadership counts.
	was := c.again.room
	c.endReread()
	c.handle(t.Context(), rereadLearned{room: was, ev: reread.Busy{Is: true}})
	if c.rereads(); c.again.room != nil {
		t.Error("a leader that leads no more reads")
	}
	c.cfg.Reread.Back = 0
	if c.beginReread(t.Context()); c.again.room != nil {
		t.Error("a rate of 0 reads")
	}
}

// What retention deletes beside the leader's read is no damage: nobody is told, and the log is silent.
func TestWhatIsDeletedMeanwhileIsNoDamage(t *testing.T) {
	c := newChair(t)
	dir := c.shelf()
	for _, step := range []replica.Step{4, 6} {
		c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, step))
	}
	c.cfg.Reread = RereadConfig{Back: 64 << 30, Every: time.Hour, Rate: 64 << 30, Keep: replica.Keep{Last: 3}}
	c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Durable = fixture.Gen(1, 6) }))
	n1 := c.node("n1", 11)
	c.beginReread(t.Context())
	was := c.lying(t.Context(), "")
	if len(was.All) != 2 {
		t.Fatalf("listed: %+v", was)
	}
	commit, err := filepath.Glob(filepath.Join(dir, "job", "*", "commits", "step-00000004.e1.json"))
	if err != nil || len(commit) != 1 || os.Remove(commit[0]) != nil {
		t.Fatal(commit, err)
	}
	c.early()
	c.again.room.Step(time.Now()) // it asks for a list, and gets the one from before the deletion
	c.rereadLearns(was)
	c.rereadsAll()
	if c.state(6) != "good" {
		t.Errorf("step 6 is %s", c.state(6))
	}
	if news := fixture.Only[control.Tell](told(t, n1)); len(news) != 0 || c.log.Count("durable_skipped") != 0 {
		t.Errorf("launchers are told %+v; the log has %d lines", news, c.log.Count("durable_skipped"))
	}
}

// Many readers together keep to the rate, and one that is broken off waits no longer.
func TestPacer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := pacer{rate: 64 << 20}
		began, done := time.Now(), make(chan error)
		for range 4 {
			go func() {
				for range 16 {
					if err := p.pace(t.Context(), 4<<20); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took < 3900*time.Millisecond || took > 4*time.Second {
			t.Errorf("256 MiB took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		p.take(time.Now(), 1<<30)
		if err := p.pace(ctx, 1); err == nil {
			t.Error("it waits for what was broken off")
		}
	})
}

// A directory that can't be listed is said, and listed again.
func TestListThatFails(t *testing.T) {
	c := newChair(t)
	c.shelf()
	if ev := c.lying(t.Context(), ""); ev.Failed || len(ev.All) != 0 {
		t.Errorf("of an empty directory: %+v", ev)
	}
	if ev := c.lying(t.Context(), "../job"); !ev.Failed {
		t.Errorf("of no name: %+v", ev)
	}
	if n := c.log.Count("list what is to be read again"); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
	if err := c.readAgain(t.Context(), reread.Read{Lying: reread.Lying{Name: "job", Job: fixture.JobID, Generation: fixture.Gen(1, 2)}}); !errors.Is(err, find.ErrNone) {
		t.Errorf("of what is gone: %v", err)
	}
}

// learnsAll has the leader take in what was done beside it.
func (c *chair) learnsAll() {
	c.t.Helper()
	for {
		select {
		case ev := <-c.in:
			c.handle(c.t.Context(), ev)
		default:
			return
		}
	}
}

// The leadership moves each 9 s, and a read takes longer: what was begun is read to its end on its node, once, and what the job keeps no more is removed once
// this node leads again. A write waits for the first list of each leader.
func TestAReadOutlivesTheLeadership(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newChair(t)
		c.shelf()
		for _, step := range []replica.Step{4, 6} {
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, step))
		}
		c.cfg.Reread = RereadConfig{Back: 64, Every: time.Hour, Rate: 64 << 30, Keep: replica.Keep{Last: 1}}
		job := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Durable = fixture.Gen(1, 6) })
		stood, leaders := "", 0
		for ; c.state(6) != "good" || c.state(4) != "gone"; leaders++ {
			if leaders == 20 {
				t.Fatalf("after %d leaders step 6 is %s and step 4 %s, %d read back", leaders, c.state(6), c.state(4), c.log.Count("durable_read"))
			}
			led := c.knows(job)
			c.beginReread(t.Context())
			if !c.again.room.Listing("job") {
				t.Error("a leader that has listed nothing knows what is unread")
			}
			for range 9 {
				c.rereads()
				time.Sleep(time.Second)
				c.learnsAll()
			}
			if c.again.room.Listing("job") {
				t.Error("no list has come")
			}
			stood += " " + c.state(6)
			delete(c.jobs, led.job.ID)
			c.endReread()
			time.Sleep(9 * time.Second) // another node leads
			c.learnsAll()
		}
		if n := c.log.Count("durable_read"); n > 2 || leaders < 2 {
			t.Errorf("%d leaders, %d reads:%s", leaders, n, stood)
		}
		if c.again.back != nil || c.again.owed != nil {
			t.Errorf("left: %+v", c.again)
		}
	})
}
