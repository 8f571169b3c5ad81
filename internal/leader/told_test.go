package leader

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// A commit in short, and then a change: the parts of the commit come with it.
func TestPartsComeWithTheNextChange(t *testing.T) {
	c := newChair(t)
	n := c.node("n2", 22)
	next := func(j *replica.Job) {
		before := c.view
		c.view.Index++
		c.view.Jobs = map[replica.JobID]*replica.Job{j.ID: j}
		c.follow(t.Context(), before)
	}
	next(fixture.Job())
	is := fixture.Changed(c.view.Jobs[fixture.JobID], func(j *replica.Job) {
		j.Position.Step, j.Committed.Step, j.Parts = 6, 6, []replica.PartRoot{{Part: replica.OfGroup(0), Root: replica.Digest{6}}}
	})
	next(is)
	told(t, n)
	next(fixture.Closed(is))
	next(fixture.Changed(fixture.Closed(is), func(j *replica.Job) { j.Degraded = true }))
	changes := fixture.Only[control.Change](told(t, n))
	if len(changes) != 2 || len(changes[0].Jobs) != 1 || !reflect.DeepEqual(changes[0].Jobs[0].Job.Parts, is.Parts) {
		t.Errorf("after a commit in short the nodes are told %+v", changes)
	} else if changes[1].Jobs[0].Job.Parts != nil || changes[1].After != changes[0].Index {
		t.Errorf("and then %+v", changes[1])
	}
}

// Whatever a leader says may be large: the status of a large job is.
func TestALargeAnswerComesInPieces(t *testing.T) {
	c := newChair(t)
	n := c.node("n2", 22)
	want := control.StatusReply{ID: 7, Status: control.LeaderStatus{Jobs: []control.JobStatus{{EndReason: strings.Repeat("status ", 4<<20)}}}}
	n.Send(want)
	var in control.Decoder
	for frame := n.Take(); frame != nil; {
		k, b, err := wire.Read(bytes.NewReader(frame), control.MaxLinkFrame)
		if err != nil || k != control.KindPiece {
			t.Fatalf("kind %d: %v", k, err)
		}
		got, err := in.Decode(k, b)
		if frame = n.Take(); err != nil || (got != nil) != (frame == nil) {
			t.Fatal(got != nil, err)
		}
		if got != nil && !reflect.DeepEqual(got, want) {
			t.Error("it arrives otherwise")
		}
	}
}

// Which regions ranks differ in, and what becomes of them, is for the launchers; what the job waits for is told elsewhere.
func TestLaunchersAreToldOfDisputes(t *testing.T) {
	c := newChair(t)
	n := c.node("n2", 22)
	led := c.knows(fixture.Job())
	told(t, n)
	for range 2 { // the second time it is no news
		for _, note := range []recovery.Note{{Code: recovery.NoteRegions, Text: `they differ in region "w"`}, {Code: recovery.NoteDispute, Text: "node n1 is quarantined"}, {Code: "waiting", Text: "for acks"}} {
			c.noted(led, note)
		}
	}
	want := []control.Tell{{Job: fixture.JobID, Text: `ranks differ: they differ in region "w"`}, {Job: fixture.JobID, Text: "ranks differ: node n1 is quarantined"}}
	if got := fixture.Only[control.Tell](told(t, n)); !reflect.DeepEqual(got, want) {
		t.Errorf("they are told %+v", got)
	}
}
