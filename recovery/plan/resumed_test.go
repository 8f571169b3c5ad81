package plan

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// What a plan says of the durable generation that it reads: what it is, and what of those ahead of it is wrong.
func TestResumedText(t *testing.T) {
	at := func(epoch replica.Epoch, step replica.Step, says, bad string) DurableGen {
		g := replica.Generation{Epoch: epoch, Step: step}
		return DurableGen{Generation: g, Position: replica.Position(g), Says: says, Bad: bad}
	}
	chosen := at(2, 2180, "step 2180 of file:///b/lm (2 min old, 35 MiB, 0.4 s)", "")
	for want, others := range map[string][]DurableGen{
		"step 2180 of file:///b/lm (2 min old, 35 MiB, 0.4 s)": {at(2, 2170, "", "older, and bad"), at(2, 2190, "newer, and not to be gone on from", ""), at(1, 9000, "", "of a line that was left")},
		"step 2180 of file:///b/lm (2 min old, 35 MiB, 0.4 s); passed over step 2210: its marker; step 2202: group-0.safetensors, chunk 9: digest differs": {
			at(2, 2202, "", "group-0.safetensors, chunk 9: digest differs"), at(2, 2210, "", "its marker")},
	} {
		in := Input{Durable: append(others, chosen)}
		if got := in.resumedText(chosen); got != want {
			t.Errorf("says %q, want %q", got, want)
		}
	}
	in := Input{Durable: []DurableGen{chosen}}
	for i := range 100 {
		in.Durable = append(in.Durable, at(2, replica.Step(3000+i), "", "group-0.safetensors, chunk 9:\ndigest differs"))
	}
	if got := in.resumedText(chosen); len(got) > maxResumed || !strings.Contains(got, " more") || strings.Contains(got, "\n") || !strings.Contains(got, "passed over step 3099") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
	if got := in.resumedText(at(2, 7, "", "")); !strings.HasPrefix(got, "step 7 of the durable tier; passed over ") {
		t.Errorf("says %q", got)
	}
	in = Input{}
	if got := in.wrongWith(); got != "" {
		t.Errorf("of an empty tier: %q", got)
	}
	in.Durable = []DurableGen{at(2, 5, "", "x"), at(2, 6, "", "y")}
	if got := in.wrongWith(); got != ": step 6: y; step 5: x" {
		t.Errorf("of a tier in which all is bad: %q", got)
	}
}

// What is bad is told of and never planned to, whatever parts it lists.
func TestBadGenerationsAreNotPlannedTo(t *testing.T) {
	job := &replica.Job{Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Lineage: replica.Lineage{{Epoch: 1}}, Ranks: make([]replica.Claimed, 1), Phase: replica.Closed}
	gen := func(step replica.Step, bad string) DurableGen {
		g := replica.Generation{Epoch: 1, Step: step}
		return DurableGen{Generation: g, Position: replica.Position(g), Bad: bad, Parts: map[replica.Part]replica.Digest{replica.OfGroup(0): {1}, replica.OfRank(0): {2}}}
	}
	in := Input{Job: job, Durable: []DurableGen{gen(20, "chunk 9: digest differs"), gen(10, "")}}
	ch, ok := in.fromDisk(in.Stock(), replica.Generation{}, false)
	if !ok || ch.gen.Step != 10 || ch.resumed != "step 10 of the durable tier; passed over step 20: chunk 9: digest differs" {
		t.Errorf("chooses %+v, %v", ch, ok)
	}
	in = Input{Job: job, Durable: in.Durable[:1]}
	if ch, ok := in.fromDisk(in.Stock(), replica.Generation{}, false); ok {
		t.Errorf("chooses %+v", ch)
	}
}
