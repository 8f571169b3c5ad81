package journal

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// However many lines somebody causes, a minute of the log has no more than its budget; other kinds of lines and warnings have room, and what was
// left out is one line.
func TestTheLogHasABudget(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		out := &fixture.Lines{}
		const most = 256 << 10
		j, err := New(out, config.Log{Level: "info", PerMinute: most}, "n1")
		if err != nil {
			t.Fatal(err)
		}
		const minutes, each = 10, 20_000
		for minute := range minutes {
			for i := range each {
				j.Exited("loud", replica.Rank(i), uint64(i), 1)
			}
			j.Leader(uint64(minute))
			for i := range 1000 { // of many kinds, to the last byte of what is not a warning's
				j.Note(fixture.Job(), recovery.Note{Code: "other", Text: fmt.Sprint(i)})
			}
			j.Failed("disk", "state_dir", "it is full")
			time.Sleep(budgetSpell)
		}
		if n := len(out.String()); n > most*minutes || n < most*minutes/4 {
			t.Errorf("%d bytes in %d minutes, budget %d a minute", n, minutes, most)
		}
		if n := out.Count(`"event":"leader"`); n != minutes {
			t.Errorf("%d of %d lines of another kind are there", n, minutes)
		}
		if n := out.Count(`"event":"failed"`); n != minutes {
			t.Errorf("%d of %d warnings are there", n, minutes)
		}
		if n := out.Count(`"event":"lines_left_out"`); n != minutes-1 {
			t.Errorf("%d lines tell of what was left out, want one a minute once that is over: %d", n, minutes-1)
		}
		written := out.Count(`"event":"process_exited"`)
		if text := fmt.Sprintf("%d of process_exited", each-written/minutes); !strings.Contains(out.String(), text) {
			t.Errorf("none says that %s were left out", text)
		}
	})
}

// What a configuration asks for line by line is beside the budget, and so is a log for debugging.
func TestWhatWasAskedForIsWritten(t *testing.T) {
	for _, c := range []config.Log{{Level: "info", Commits: true, PerMinute: 64 << 10}, {Level: "debug", PerMinute: 64 << 10}} {
		out := &fixture.Lines{}
		j, err := New(out, c, "n1")
		if err != nil {
			t.Fatal(err)
		}
		was := fixture.Job()
		const commits = 2000
		for range commits {
			is := fixture.Changed(was, func(j *replica.Job) { j.Position.Step++; j.Committed.Step++ })
			j.JobChanged(was, is, time.Time{})
			was = is
		}
		if n := out.Count(`"event":"committed"`); n != commits {
			t.Errorf("%+v: %d of %d commits have a line", c, n, commits)
		}
	}
}

func TestBudgetTellsFewKindsApart(t *testing.T) {
	b := budget{most: 1 << 20}
	now := time.Now()
	for i := range 10 * budgetKinds {
		b.take(now, fmt.Sprint("kind ", i), false, 1)
	}
	if len(b.kinds) > budgetKinds+1 {
		t.Errorf("%d kinds are remembered", len(b.kinds))
	}
	if ok, _ := (&budget{}).take(now, "k", false, 1<<30); !ok {
		t.Error("a log without a budget leaves a line out")
	}
}

// What fails again and again hides no other failure.
func TestFailuresOfOneThingHideNoOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		out := &fixture.Lines{}
		j, err := New(out, config.Log{Level: "info", PerMinute: 64 << 10}, "n1")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2000 {
			j.Failed("rendezvous", fmt.Sprint("key ", i), "no room")
		}
		j.Failed("disk", "state_dir", "it is full")
		if n := out.Count("it is full"); n != 1 {
			t.Errorf("%d lines say that the disk is full", n)
		}
		written := out.Count("no room")
		time.Sleep(budgetSpell)
		j.Leader(1)
		if text := fmt.Sprintf("%d of failed rendezvous", 2000-written); !strings.Contains(out.String(), text) {
			t.Errorf("none says that %s were left out", text)
		}
	})
}
