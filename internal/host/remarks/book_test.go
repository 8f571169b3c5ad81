package remarks

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

func note(name, text string) replica.Remark {
	return replica.Remark{Kind: replica.Note, Name: name, Text: text}
}

func loss(step replica.Step, value float64) replica.Remark {
	return replica.Remark{Kind: replica.Metric, Name: "loss", Step: step, Value: value}
}

// writing is a job with a durable write of a step under way; number 0: none is.
func writing(number uint64, step replica.Step) *replica.Job {
	return fixture.Changed(fixture.Job(), func(j *replica.Job) {
		if j.Writer = nil; number > 0 {
			j.Writer = &replica.DurableWrite{Number: number, Position: replica.Position{Epoch: j.Epoch, Step: step}}
		}
	})
}

// Nothing is told between durable writes, and in one what is of its step, once, and again where it changes or a new leader comes.
func TestReports(t *testing.T) {
	var b Book
	tells := func(what string, job *replica.Job, want ...string) {
		t.Helper()
		list, news := b.Report(job)
		var got []string
		for _, r := range list {
			got = append(got, fmt.Sprintf("%v %s %s%g of rank %d", r.Kind, r.Name, r.Text, r.Value, r.Rank))
		}
		if !slices.Equal(got, want) || news != (want != nil) {
			t.Errorf("%s: tells %q (news: %t), want %q", what, got, news, want)
		}
	}
	tells("nobody has said anything", writing(1, 10))
	b.Say(1, 5, []replica.Remark{loss(10, 1)})
	b.Say(1, 5, []replica.Remark{loss(20, 2)})
	tells("nothing is written", writing(0, 0))
	tells("of a step that lies back", writing(1, 15), "metric loss 1 of rank 1")
	tells("told already", writing(1, 15))
	b.Say(1, 5, []replica.Remark{loss(21, 3)})
	tells("a later step changes nothing", writing(1, 15))
	b.Say(0, 7, []replica.Remark{loss(12, 4), note("lr", "0.1")})
	tells("a lower rank", writing(1, 15), "note lr 0.10 of rank 0", "metric loss 4 of rank 0")
	b.Say(replica.ByLauncher, 0, []replica.Remark{note("lr", "9"), note("who", "ada")})
	tells("a launcher", writing(1, 15), "note lr 0.10 of rank 0", "note who ada0 of rank 4294967295", "metric loss 4 of rank 0")
	b.Linked()
	tells("another leader", writing(1, 15), "note lr 0.10 of rank 0", "note who ada0 of rank 4294967295", "metric loss 4 of rank 0")
	b.Say(0, 7, []replica.Remark{loss(16, math.NaN()), note("lr", "0.1")})
	tells("it is no number later", writing(1, 15))
	b.Say(1, 5, []replica.Remark{loss(17, math.NaN())})
	tells("it is no number", writing(1, 17), "note lr 0.10 of rank 0", "note who ada0 of rank 4294967295")
	b.Say(0, 7, []replica.Remark{loss(18, 5), note("lr", "0.1")})
	tells("and is one again", writing(1, 18), "note lr 0.10 of rank 0", "note who ada0 of rank 4294967295", "metric loss 5 of rank 0")
	b.Say(0, 7, nil)
	tells("the next write, and texts were taken back", writing(2, 9), "note lr 9"+"0 of rank 4294967295", "note who ada0 of rank 4294967295")
	b.Say(0, 6, []replica.Remark{note("lr", "of before")})
	tells("a process that has lost its rank", writing(2, 9))
	b.Learn(&replica.Job{Phase: replica.Ended})
	tells("the job has ended", writing(3, 30))
}

// A step that comes again is of another future.
func TestStepsThatComeAgain(t *testing.T) {
	var b Book
	of := func(step replica.Step) float64 {
		list, _ := b.Report(writing(uint64(step)+1, step))
		if b.Linked(); len(list) == 0 {
			return -1
		}
		return list[0].Value
	}
	open := func(e replica.Epoch, at replica.Step) *replica.Job {
		return &replica.Job{Phase: replica.Open, Epoch: e, Position: replica.Position{Epoch: e, Step: at}}
	}
	b.Learn(open(3, 0))
	for s := replica.Step(10); s <= 30; s += 10 {
		b.Say(0, 5, []replica.Remark{loss(s, float64(s))})
		b.Learn(open(3, s-5))
	}
	if got := of(30); got != 30 {
		t.Errorf("step 30 has %v", got)
	}
	b.Learn(open(4, 20)) // a fault took the job back
	if got := of(30); got != 20 {
		t.Errorf("behind a fault step 30 has %v", got)
	}
	b.Say(0, 5, []replica.Remark{loss(20, 7)})
	if got := of(25); got != 7 {
		t.Errorf("said anew, step 25 has %v", got)
	}
	if got := of(9); got != -1 {
		t.Errorf("step 9 has %v, and nothing was said of it", got)
	}
}

// However often a rank speaks, what is remembered is bounded, and reaches back.
func TestPointsAreThinned(t *testing.T) {
	var b Book
	for s := range replica.Step(10_000) {
		b.Say(0, 5, []replica.Remark{loss(s, float64(s))})
	}
	list := b.pages[0].points[series{replica.Metric, "loss"}]
	if len(list) > maxPoints {
		t.Errorf("%d points", len(list))
	}
	var steps []replica.Step
	for _, r := range list {
		steps = append(steps, r.Step)
	}
	if !slices.IsSorted(steps) || steps[len(steps)-1] != 9999 || steps[0] > 5000 {
		t.Errorf("steps %v", steps)
	}
	for i := range 1000 {
		b.Say(0, 5, []replica.Remark{{Kind: replica.Metric, Name: fmt.Sprint(i)}})
	}
	if n := len(b.pages[0].points); n > 2*replica.MaxRemarks {
		t.Errorf("%d metrics", n)
	}
	if got, _ := b.Report(writing(1, 9999)); len(got) != replica.MaxRemarks || reflect.DeepEqual(got, list) {
		t.Errorf("%d are told", len(got))
	}
}
