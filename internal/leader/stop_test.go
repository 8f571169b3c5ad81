package leader

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// writesToDisk makes a job write to disk, and everything of it lie on both nodes.
func writesToDisk(j *replica.Job) {
	j.Options.DurableEvery = 100
	for _, p := range []replica.Part{replica.OfGroup(0), replica.OfRank(0), replica.OfRank(1)} {
		j.Parts = append(j.Parts, replica.PartRoot{Part: p, Root: replica.Digest{1}, Holders: []replica.Holder{{Node: "n1", Incarnation: 11}, {Node: "n2", Incarnation: 22}}})
	}
}

// A job stops once the step is committed that its ranks are in; or when that takes too long, or it is open no more.
func TestAJobStopsBetweenSteps(t *testing.T) {
	for _, tc := range []struct {
		name string
		then func(c *chair, led *ledJob)
		says string
	}{
		{"it is committed", func(c *chair, led *ledJob) {
			c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Position, j.Committed = replica.Position{Epoch: 3, Step: 8}, fixture.Gen(3, 8) }))
		}, ""},
		{"it takes too long", func(c *chair, led *ledJob) {
			c.reported(led, "n1", replica.RankReport{Rank: 0, Incarnation: led.job.Ranks[0].Incarnation, Alive: true, Live: replica.PackWord(3, 40, replica.Idle)})
			c.pass(stepGrace + time.Second)
		}, "its ranks were at step 40, and the 33 steps since were not committed and are given up"},
		{"a fault closes the epoch", func(c *chair, led *ledJob) { c.knows(fixture.Closed(led.job)) }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newChair(t)
			c.node("n1", 11)
			c.node("n2", 22)
			led := c.knows(fixture.Job())
			for i, n := range []replica.NodeName{"n1", "n2"} {
				c.reported(led, n, replica.RankReport{Rank: replica.Rank(i), Incarnation: led.job.Ranks[i].Incarnation, Alive: true, Live: replica.PackWord(3, 7, replica.Idle)})
			}
			may, gives := make(chan string, 1), ""
			stops := func() bool {
				c.mayHalt(led)
				select {
				case gives = <-may:
					return true
				default:
					return false
				}
			}
			c.halted(haltAsked{led.job.ID, may})
			c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Position, j.Committed = replica.Position{Epoch: 3, Step: 7}, fixture.Gen(3, 7) }))
			if stops() {
				t.Fatal("it stops before the step is committed that its ranks are in")
			}
			tc.then(c, led)
			if !stops() {
				t.Error("it does not stop")
			}
			if (gives == "") != (tc.says == "") || !strings.Contains(gives, tc.says) {
				t.Errorf("it gives up %q, want %q", gives, tc.says)
			}
		})
	}
}

// A launcher that comes to a stopped job has it go on, and comes again; to one that is being ended it comes again until the name is free.
func TestAStoppedJobGoesOn(t *testing.T) {
	for _, ends := range []bool{false, true} {
		c := newChair(t)
		n1 := c.node("n1", 11)
		job := fixture.Closed(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Stop = &replica.Stop{Reason: "enough", End: ends} }))
		c.knows(job)
		c.proposed()
		c.create(t.Context(), n1, control.CreateRequest{ID: 7, Name: "job", Layout: job.Layout})
		cmds := proposalsOf[replica.StopJob](c)
		if ends != (len(cmds) == 0) || !ends && !cmds[0].Clear {
			t.Errorf("ends %v: proposed %+v", ends, cmds)
		}
		if !ends {
			continue // its answer comes with the outcome
		}
		if r := fixture.Only[control.CreateReply](told(t, n1)); len(r) != 1 || !r[0].Retry {
			t.Errorf("the launcher is answered by %+v", r)
		}
	}
}

// A daemon that is asked to end goes where the others have what is committed. The last one stays until that is on disk; and where it leads, until
// the others have gone.
func TestDaemonsThatAreAskedToEnd(t *testing.T) {
	c := newChair(t)
	n1, n2 := c.node("n1", 11), c.node("n2", 22)
	led := c.knows(fixture.Changed(fixture.Job(), writesToDisk))
	c.proposed()
	says := func(n *nodeLink) string {
		t.Helper()
		words := fixture.Only[control.MayLeave](told(t, n))
		if len(words) == 0 {
			return "nothing"
		}
		return words[len(words)-1].Why
	}
	c.message(t.Context(), n2, control.Leaving{})
	if why := says(n2); !strings.Contains(why, "whether the other nodes, which have step 5 of job job too, are asked to end as well shows within 2s") {
		t.Errorf("n1 has everything and votes, and n2 is told: %q", why)
	}
	c.pass(leaveMore)
	c.tellLeaving(t.Context())
	if why := says(n2); why != "" {
		t.Errorf("n1 has everything and votes, and was not asked to end: n2 is told: %s", why)
	}
	c.message(t.Context(), n1, control.Leaving{})
	if why := says(n1); !strings.Contains(why, "step 5 of job job is written") {
		t.Errorf("the last daemon is told: %q", why)
	}
	if begun := proposalsOf[replica.BeginDurable](c); len(begun) != 1 || begun[0].Write.Generation != fixture.Gen(3, 5) {
		t.Errorf("begun: %+v", begun)
	}
	if c.tellLeaving(t.Context()); says(n1) != "nothing" {
		t.Error("it is told again at once")
	}
	c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Durable = j.Committed }))
	c.tellLeaving(t.Context())
	if why := says(n1); !strings.Contains(why, "this daemon leads, and that of node n2 ends first") {
		t.Errorf("what is committed is on disk, n2 is there yet, and the leader's daemon is told: %q", why)
	}
	delete(c.links.of, "n2")
	c.tellLeaving(t.Context())
	if why := says(n1); why != "" {
		t.Errorf("n2 has gone, and the leader's daemon is told: %s", why)
	}
}

// Daemons that are asked to end at once count on none of each other: each waits for the write, whoever was first, and so does one whose word comes
// a moment later. It used to be told at once that it may, since the others stayed; of those, none was left over where one lost the lead.
func TestDaemonsThatAreAskedToEndTogether(t *testing.T) {
	for _, later := range []time.Duration{0, leaveMore - time.Millisecond} {
		c := newChair(t)
		c.cons = threeVoters{c.cons}
		nodes := []*nodeLink{c.node("n1", 11), c.node("n2", 22), c.node("n3", 33)}
		led := c.knows(fixture.Changed(fixture.Job(), writesToDisk))
		for i, n := range nodes {
			if i == 1 {
				c.pass(later)
			}
			c.message(t.Context(), n, control.Leaving{})
		}
		c.pass(leaveSaid + leaveMore)
		c.tellLeaving(t.Context())
		for _, n := range nodes {
			words := fixture.Only[control.MayLeave](told(t, n))
			if len(words) == 0 || !strings.Contains(words[len(words)-1].Why, "step 5 of job job is written") {
				t.Errorf("%v later: %s is told %+v", later, n.node.Name, words)
			}
		}
		c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Durable = j.Committed }))
		c.tellLeaving(t.Context())
		for _, n := range nodes[1:] {
			if words := fixture.Only[control.MayLeave](told(t, n)); len(words) != 1 || words[0] != (control.MayLeave{}) {
				t.Errorf("%v later: it is on disk, and %s is told %+v", later, n.node.Name, words)
			}
		}
	}
}

// A daemon that writes the last step of a job whose ranks finish stays for it, though another could write it anew.
func TestAWriterOfTheLastStepStays(t *testing.T) {
	for _, finishes := range []bool{false, true} {
		c := newChair(t)
		c.node("n1", 11)
		n2 := c.node("n2", 22)
		led := c.knows(fixture.Changed(fixture.Job(), writesToDisk))
		c.knows(fixture.Changed(led.job, func(j *replica.Job) {
			j.Writer = &replica.DurableWrite{Generation: j.Committed, Number: 1, Position: j.Position, Writer: "n1", Shards: []replica.Shard{{Part: replica.OfGroup(0), Node: "n2"}}}
		}))
		c.reported(led, "n1", replica.RankReport{Rank: 0, Incarnation: led.job.Ranks[0].Incarnation, Alive: true, Live: replica.PackWord(3, 5, replica.Idle), Left: finishes})
		told(t, n2)
		c.message(t.Context(), n2, control.Leaving{})
		words := fixture.Only[control.MayLeave](told(t, n2))
		if len(words) != 1 || strings.Contains(words[0].Why, "step 5 of job job is written") != finishes {
			t.Errorf("a rank has left: %v, and it is told %+v", finishes, words)
		}
	}
}

// What nobody can write holds no daemon up, and people read that it is not on disk, and why. A new leader waits for the daemons to link first, and any
// leader for one that answers: it was late to link, and the others went meanwhile.
func TestDaemonsDoNotWaitForWhatFails(t *testing.T) {
	for _, answers := range []bool{true, false} {
		c := newChair(t)
		c.cfg.Answers = func(n replica.NodeName) bool { return n != "n2" || answers }
		n1 := c.node("n1", 11)
		c.view.Nodes["n2"] = replica.Node{Name: "n2", Incarnation: 22, Session: 1}
		led := c.knows(fixture.Changed(fixture.Job(), writesToDisk))
		c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Parts[2].Holders = j.Parts[2].Holders[1:] })) // on n2 alone
		c.since = c.now()
		c.message(t.Context(), n1, control.Leaving{})
		waits := func(words []control.MayLeave) bool {
			return len(words) == 1 && strings.Contains(words[0].Why, "are to link to the leader: the nodes that hold") && strings.Contains(words[0].Why, "step 5 of job job")
		}
		if words := fixture.Only[control.MayLeave](told(t, n1)); !waits(words) {
			t.Errorf("under a new leader it is told %+v", words)
		}
		c.pass(leaveLinks + time.Second)
		c.tellLeaving(t.Context())
		c.tellLeaving(t.Context())
		said := told(t, n1)
		words, warned := fixture.Only[control.MayLeave](said), fixture.Only[control.Tell](said)
		switch {
		case answers && (!waits(words) || len(warned) > 0):
			t.Errorf("n2 has no link and answers, which alone has a part, and n1 is told %+v", said)
		case !answers && (len(words) != 1 || words[0].Why != "" || !words[0].Keep || len(warned) != 1 || !strings.Contains(warned[0].Text, "step 5 is NOT on disk and nobody writes it (the nodes that hold")):
			t.Errorf("n2 is away, which alone has a part, and n1 is told %+v", said)
		}
		if !answers {
			continue
		}
		c.node("n2", 22)
		c.tellLeaving(t.Context())
		if words := fixture.Only[control.MayLeave](told(t, n1)); len(words) != 1 || !strings.Contains(words[0].Why, "step 5 of job job is written") {
			t.Errorf("n2 has linked, and n1 is told %+v", words)
		}
	}
}

// threeVoters is the log of three voters, of which one is there.
type threeVoters struct{ Log }

func (threeVoters) Voters() []consensus.Voter {
	return []consensus.Voter{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}
}

// A daemon that goes without asking is counted on no more; one that links anew says anew whether it ends.
func TestADaemonThatGoesIsNotCountedOn(t *testing.T) {
	c := newChair(t)
	c.cons = threeVoters{c.cons}
	n1, n2 := c.node("n1", 11), c.node("n2", 22)
	c.node("n3", 33)
	c.knows(fixture.Changed(fixture.Job(), writesToDisk))
	c.since = c.now() - leaveLinks
	c.message(t.Context(), n2, control.Leaving{Goes: true})
	if words := fixture.Only[control.MayLeave](told(t, n2)); len(words) != 0 {
		t.Errorf("it is told %+v", words)
	}
	c.message(t.Context(), n1, control.Leaving{})
	if words := fixture.Only[control.MayLeave](told(t, n1)); len(words) != 1 || !strings.Contains(words[0].Why, "step 5 of job job is written") {
		t.Errorf("n2 goes, and n1 is told %+v", words)
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	c.linkUp(t.Context(), &nodeLink{Link: control.NewLink(near, control.ToNode), node: n2.node})
	c.message(t.Context(), n1, control.Leaving{})
	told(t, n1)
	c.pass(leaveMore)
	c.tellLeaving(t.Context())
	if words := fixture.Only[control.MayLeave](told(t, n1)); len(words) != 1 || words[0].Why != "" {
		t.Errorf("n2 has started again, and n1 is told %+v", words)
	}
}

// Where the last write has failed again and again the daemons go, and people read that the step is not on disk, and why: once for each daemon.
func TestDaemonsThatGoWithoutTheLastWriteSaySo(t *testing.T) {
	c := newChair(t)
	n1 := c.node("n1", 11)
	led := c.knows(fixture.Changed(fixture.Job(), writesToDisk))
	c.proposed()
	c.message(t.Context(), n1, control.Leaving{})
	told(t, n1)
	for range leaveTries {
		write := replica.DurableWrite{Generation: led.job.Committed, Position: led.job.Position, Writer: "n1"}
		led = c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Writer = &write }))
		c.pass(time.Minute)
		led = c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Writer = nil }))
		c.pass(time.Minute)
	}
	if n := led.durable.Failures(); n < leaveTries {
		t.Fatalf("%d writes have failed", n)
	}
	for range 2 {
		c.tellLeaving(t.Context())
	}
	var said []string
	goes := false
	for _, m := range told(t, n1) {
		switch m := m.(type) {
		case control.Tell:
			if strings.Contains(m.Text, "NOT on disk") {
				said = append(said, m.Text)
			}
		case control.MayLeave:
			goes = goes || m.Why == ""
		}
	}
	if !goes || len(said) != 1 || !strings.Contains(said[0], "step 5 is NOT on disk after 3 tries") {
		t.Errorf("it goes: %v, and people are told %q", goes, said)
	}
}

// What is committed is written when somebody asks for that.
func TestSaveBeginsAWrite(t *testing.T) {
	c := newChair(t)
	c.node("n1", 11)
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) { writesToDisk(j); j.Options.DurableEvery = 0 }))
	c.proposed()
	c.saved(t.Context(), saveAsked{job: led.job.ID})
	if begun := proposalsOf[replica.BeginDurable](c); len(begun) != 1 || begun[0].Write.Generation != led.job.Committed {
		t.Errorf("begun: %+v", begun)
	}
}

// What is on disk already is pinned for who wants it kept, before he has an answer; without a tier the order is refused.
func TestSaveKeepsWhatIsThere(t *testing.T) {
	c := newChair(t)
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Name, j.Durable = "job", j.Committed })
	if r := c.save(t.Context(), job, ""); !strings.Contains(r.Refused, "without a durable tier") {
		t.Errorf("without a tier: %+v", r)
	}
	dir := c.shelf()
	if r := c.save(t.Context(), job, "epoch 3"); !strings.Contains(r.Refused, "can't be kept") {
		t.Errorf("of what is gone from the disk: %+v", r)
	}
	c.writes("job", fixture.Cluster, job.ID, job.Committed)
	if r := c.save(t.Context(), job, "epoch 3"); !strings.HasSuffix(r.Text, "is on disk already, and is kept") {
		t.Errorf("kept: %+v", r)
	}
	pins, err := filepath.Glob(filepath.Join(dir, "job", "*", "pins", "*-save.json"))
	if err != nil || len(pins) != 1 {
		t.Errorf("pins %v, %v", pins, err)
	}
	if r := c.save(t.Context(), job, ""); !strings.HasSuffix(r.Text, "is on disk already") {
		t.Errorf("not to be kept: %+v", r)
	}
}
