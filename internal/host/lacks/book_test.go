package lacks

import (
	"reflect"
	"testing"

	"github.com/replicad/replicad/replica"
)

func at(e replica.Epoch, s replica.Step) replica.Generation {
	return replica.Generation{Epoch: e, Step: s}
}

// A life of a job: what its report says, and what the launchers print, after each event.
func TestBook(t *testing.T) {
	b := Book{}
	job := &replica.Job{Phase: replica.Open, Epoch: 2, ClosedEpoch: 1, Committed: at(2, 10), Ranks: []replica.Claimed{{Incarnation: 5}, {Incarnation: 6}, {Incarnation: 7}}}
	reports := func(what string, want ...replica.Lacks) {
		t.Helper()
		if b.Learn(job); !reflect.DeepEqual(b.Report(), want) {
			t.Errorf("%s: reports %+v, want %+v", what, b.Report(), want)
		}
	}
	prints := func(g replica.Generation, want ...replica.Lacking) {
		t.Helper()
		job.Committed = g
		if got := b.Committed(g); !reflect.DeepEqual(got, want) {
			t.Errorf("at the commit of %v: %+v, want %+v", g, got, want)
		}
	}
	says := func(rank replica.Rank, by replica.Incarnation, text string, live replica.Generation, news bool) {
		t.Helper()
		if b.Say(rank, by, text, live) != news {
			t.Errorf("rank %d says %q: news is %t", rank, text, !news)
		}
	}

	says(0, 5, "", at(2, 11), false)
	reports("nothing was said")
	says(0, 5, "teacher", at(2, 12), true)
	says(0, 5, "teacher", at(2, 13), false)
	says(2, 7, "teacher", at(2, 13), true)
	said := []replica.Lacks{{Rank: 0, Incarnation: 5, Text: "teacher"}, {Rank: 2, Incarnation: 7, Text: "teacher"}}
	reports("said", said...)
	prints(at(2, 11))
	prints(at(2, 13), replica.Lacking{Rank: 0, More: 1, Text: "teacher"})
	prints(at(2, 14))
	says(1, 6, "teacher", at(2, 14), true)
	prints(at(2, 15)) // it is known
	reports("a third one", said[0], replica.Lacks{Rank: 1, Incarnation: 6, Text: "teacher"}, said[1])

	// One takes it back while a durable write of an older step is under way.
	says(1, 6, "", at(2, 16), true)
	job.Writer = &replica.DurableWrite{Generation: at(2, 15)}
	prints(at(2, 17))
	earlier := replica.Lacks{Rank: 1, Incarnation: 6, Earlier: "teacher", Until: at(2, 16)}
	reports("taken back", said[0], earlier, said[1])
	job.Writer = nil
	reports("and written", said[0], said[1])

	// Rank 2's process ends: what it said goes for its epoch, until there is a commit of a later one.
	job.Phase, job.ClosedEpoch, job.Epoch = replica.Closed, 2, 3
	reports("its rank is free", said[0], said[1])
	job.Ranks[2].Incarnation = 8
	ended := replica.Lacks{Rank: 2, Incarnation: 7, Earlier: "teacher", Until: at(2, replica.MaxStep)}
	reports("its rank has a new process", said[0], ended)
	says(2, 7, "buffer", at(2, 20), true) // late: the arena's new owner has said nothing yet
	reports("a late word", said[0], replica.Lacks{Rank: 2, Incarnation: 7, Earlier: "buffer, teacher", Until: at(2, replica.MaxStep)})
	says(2, 8, "teacher", at(3, 17), true)
	says(2, 7, "", at(2, 20), false)
	job.Phase = replica.Open
	prints(at(3, 18)) // rank 0 has said so
	reports("one more epoch", said[0], replica.Lacks{Rank: 2, Incarnation: 8, Text: "teacher"})

	// Whoever says it after it was taken back says something new.
	says(0, 5, "", at(3, 19), true)
	says(2, 8, "", at(3, 19), true)
	says(0, 5, "teacher", at(3, 20), true)
	prints(at(3, 20), replica.Lacking{Rank: 0, Text: "teacher"})

	job.Phase = replica.Ended
	reports("the end")
	if len(b) != 0 {
		t.Errorf("an ended job leaves %v", b)
	}
}

// A rank that names more with each step does not fill the launcher's output.
func TestAListThatGrowsIsPrintedAFewTimes(t *testing.T) {
	b, text, lines := Book{}, "a", 0
	for s := replica.Step(1); s < 50; s++ {
		text += ", a"
		if !b.Say(0, 1, text, at(1, s)) {
			t.Fatal("it is no news")
		}
		lines += len(b.Committed(at(1, s)))
	}
	if lines != maxLines || b.Report()[0].Text != text {
		t.Errorf("%d lines, want %d; reported %+v", lines, maxLines, b.Report())
	}
}
