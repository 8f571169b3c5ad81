package replica

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func at(e Epoch, s Step) Generation { return Generation{Epoch: e, Step: s} }

// What a rank has taken back is still lacking in what was copied before.
func TestLacksOfGenerations(t *testing.T) {
	l := Lacks{}.Now("teacher", at(2, 10)).Now("teacher, critic", at(2, 12)).Now("critic", at(2, 14)).Now("", at(2, 16))
	for g, want := range map[Generation]string{at(2, 1): "critic, teacher", at(2, 16): "critic, teacher", at(2, 17): "", at(3, 1): "", at(1, 90): "critic, teacher"} {
		if got := l.Of(g); got != want {
			t.Errorf("%v lacks %q, want %q", g, got, want)
		}
	}
	again := l.Now("actor", at(3, 5))
	for g, want := range map[Generation]string{at(2, 3): "actor, critic, teacher", at(2, 17): "actor", at(3, 9): "actor"} {
		if got := again.Of(g); got != want {
			t.Errorf("said again: %v lacks %q, want %q", g, got, want)
		}
	}
	if same := again.Now("actor", at(3, 8)); same != again {
		t.Errorf("the same text again changes %+v to %+v", again, same)
	}
	if back := again.Now("", at(1, 1)); back.Until != at(2, 16) {
		t.Errorf("a word of an older step takes back the newer one: %v", back.Until)
	}
}

func TestFold(t *testing.T) {
	rows := Fold(map[Rank]string{3: "a", 1: "b", 2: "a", 0: "", 7: "a"})
	if want := []Lacking{{Rank: 1, Text: "b"}, {Rank: 2, More: 2, Text: "a"}}; !reflect.DeepEqual(rows, want) {
		t.Errorf("%+v, want %+v", rows, want)
	}
	if a, b := rows[0].Who(), rows[1].Who(); a != "rank 1" || b != "rank 2 and 2 more" {
		t.Errorf("%q, %q", a, b)
	}
	if rows := Fold(map[Rank]string{1: ""}); rows != nil {
		t.Errorf("nothing: %+v", rows)
	}
	each := map[Rank]string{}
	for r := range Rank(500) {
		each[r] = strings.Repeat("x", int(r)+1)
	}
	rows = Fold(each)
	if last := rows[len(rows)-1]; len(rows) != maxLacking || last.Rank != maxLacking-1 || last.More != 500-maxLacking || strings.Contains(last.Text, "xx") {
		t.Errorf("500 texts: %d rows, the last %+v", len(rows), last)
	}
}

func TestUnionIsBounded(t *testing.T) {
	long := strings.Repeat("é", MaxLacks/2)
	if u := union(long, "x, "+long+"é, y"); len(u) > MaxLacks || !utf8.ValidString(u) || !strings.HasPrefix(u, long) {
		t.Errorf("%d bytes: %.20q", len(u), u)
	}
}

// Of a rank that has a new process, or runs elsewhere now, only the generations lack it that the old one may have had a part in.
func TestLackingByReports(t *testing.T) {
	job := &Job{Ranks: []Claimed{{Incarnation: 5, Node: "a"}, {Incarnation: 9, Node: "a"}}}
	reports := map[NodeName]NodeReport{
		"a": {Holder: Holder{Node: "a"}, Epoch: 4, Lacks: []Lacks{{Rank: 0, Incarnation: 5, Text: "teacher"}, {Rank: 1, Incarnation: 9, Text: "teacher", Earlier: "critic", Until: at(3, 8)}}},
		"b": {Holder: Holder{Node: "b"}, Epoch: 3, Lacks: []Lacks{{Rank: 1, Incarnation: 7, Text: "buffer"}, {Rank: 0, Incarnation: 5, Text: "critic"}, {Rank: 8, Incarnation: 1, Text: "other"}}}, // the node is gone since epoch 3
	}
	if got, want := LackingNow(job, reports), []Lacking{{Rank: 0, More: 1, Text: "teacher"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("now: %+v, want %+v", got, want)
	}
	if got, want := LackingIn(job, reports, at(4, 20)), []Lacking{{Rank: 0, More: 1, Text: "teacher"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("in (4,20): %+v, want %+v", got, want)
	}
	// Whatever node says it: a mark too many costs nobody a run.
	want := []Lacking{{Rank: 0, Text: "teacher, critic"}, {Rank: 1, Text: "teacher, critic, buffer"}, {Rank: 8, Text: "other"}}
	if got := LackingIn(job, reports, at(3, 8)); !reflect.DeepEqual(got, want) {
		t.Errorf("in (3,8): %+v, want %+v", got, want)
	}
}
