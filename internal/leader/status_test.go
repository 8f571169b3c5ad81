package leader

import (
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Status says what losses would come to: by node and failure domain, without what is silent, and with the votes.
func TestStatusSaysWhatLossesComeTo(t *testing.T) {
	c := newChair(t)
	silent := replica.NodeName("")
	c.cfg.Quiet = func(n replica.NodeName) bool { return n == silent }
	for i, n := range []replica.NodeName{"n1", "n2", "n3"} {
		c.node(n, replica.NodeIncarnation(11*(i+1)))
	}
	for n, rack := range map[replica.NodeName]string{"n1": "r1", "n2": "r2", "n3": "r2"} {
		node := c.view.Nodes[n]
		node.Labels = map[string]string{"rack": rack, "zone": "z"}
		c.view.Nodes[n] = node
	}
	h := func(n replica.NodeName, i replica.NodeIncarnation) replica.Holder {
		return replica.Holder{Node: n, Incarnation: i}
	}
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Parts = []replica.PartRoot{
			{Part: replica.OfGroup(0), Root: replica.Digest{1}, Holders: []replica.Holder{h("n1", 11), h("n2", 22)}},
			{Part: replica.OfRank(0), Root: replica.Digest{2}, Holders: []replica.Holder{h("n1", 11), h("n3", 33)}},
			{Part: replica.OfRank(1), Root: replica.Digest{3}, Holders: []replica.Holder{h("n2", 22), h("n3", 32)}}, // n3 came back without its memory
		}
	}))
	for n, node := range c.view.Nodes {
		c.recoverStep(t.Context(), fixture.JobID, led, recovery.NodeUp{Holder: node.Holder(), Session: 1})
		r := replica.NodeReport{Job: fixture.JobID, Holder: node.Holder(), Session: 1}
		if n == "n3" {
			r.Offers, r.Spare = 2, true
		}
		c.recoverStep(t.Context(), fixture.JobID, led, recovery.Report{NodeReport: r})
	}
	why := func() map[string]string {
		out := map[string]string{}
		for _, l := range c.said()[0].Losses {
			out[l.Of] = strings.Join(l.Why, "; ")
		}
		return out
	}
	private1 := "private 1 of step 5 is held by n2 alone"
	got := why()
	for of, want := range map[string]string{"process": "", "node n3": "", "node n2": private1, "node n1": "0 of 1 voters would be left", "rack r2": private1} {
		if text, ok := got[of]; !ok || !strings.HasPrefix(text, want) || (text == "") != (want == "") {
			t.Errorf("loss of %s: %q, want %q", of, text, want)
		}
	}
	if len(got) != 5 { // all nodes are in one zone, and one alone in rack r1
		t.Errorf("losses %v", got)
	}
	if parts := c.said()[0].Parts; len(parts) != 3 || !slices.Equal(parts[2].Nodes, []replica.NodeName{"n2"}) {
		t.Errorf("parts %+v", parts)
	}
	if got, want := c.said()[0].Odds, []control.OddsStatus{{Lost: 1, Of: 3, Ways: 3, Survive: 1}, {Lost: 2, Of: 3, Ways: 3}, {Lost: 3, Of: 3, Ways: 1}}; !slices.Equal(got, want) {
		t.Errorf("odds %+v, want %+v", got, want)
	}
	silent = "n3"
	got = why()
	for of, want := range map[string]string{"process": "", "node n1": "private 0 of step 5 is held by n1 and n3 alone; 1 processes would have to start elsewhere (ranks 0), other nodes offer none", "node n3": ""} {
		if !strings.HasPrefix(got[of], want) || want == "" && got[of] != "" {
			t.Errorf("with n3 silent, loss of %s: %q, want %q", of, got[of], want)
		}
	}
	if s := c.said()[0].Silent; !slices.Equal(s, []replica.NodeName{"n3"}) {
		t.Errorf("silent: %v", s)
	}
	if got, want := c.said()[0].Odds, []control.OddsStatus{{Lost: 1, Of: 2, Ways: 2}, {Lost: 2, Of: 2, Ways: 1}}; !slices.Equal(got, want) {
		t.Errorf("with n3 silent, odds %+v, want %+v", got, want)
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) { j.Phase = replica.Ended })
	if s := c.said()[0]; len(s.Losses)+len(s.Parts)+len(s.Odds) != 0 {
		t.Errorf("of a job that has ended: %+v", s)
	}
}
