package lock

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestEveryNextLife registers a node with another memory in every phase, over every fault of its ranks, with every word of what it runs: no
// claim names the former life in silence, a proved claim goes on, and only what ended closes the epoch.
func TestEveryNextLife(t *testing.T) {
	phases := map[string]string{
		"created": "", "begun": "begin 1|claim 0 a|claim 1 b|claim 2 b",
		"planned":   "begin 1|claim 0 a|claim 1 b|claim 2 b|loaded all 0|seal all 0|private all 0|plan init",
		"open":      "begin 1|claim 0 a|claim 1 b|claim 2 b|loaded all 0|seal all 0|private all 0|plan init|resume",
		"closed":    "begin 1|claim 0 a|claim 1 b|claim 2 b|loaded all 0|seal all 0|private all 0|plan init|resume|fault exception rank=0",
		"replanned": "begin 1|claim 0 a|claim 1 b|claim 2 b|loaded all 0|seal all 0|private all 0|plan init|resume|fault exception rank=0|plan",
	}
	faults := []string{"", "fault exception rank=1", "fault hang rank=1", "fault process-dead rank=1", "fault silent node=b", "fault node-dead node=b", "fault drain node=b"}
	for phase, start := range phases {
		for _, fault := range faults {
			for _, runs := range []string{"", "1", "2", "1,2", "1/7,2"} {
				for boot := 1; boot <= 2; boot++ {
					if phase == "created" && fault+runs != "" {
						continue // nobody holds a rank
					}
					name := fmt.Sprintf("%s, %s, runs %s, boot %d", phase, fault, runs, boot)
					w, out := newWorld(), &strings.Builder{}
					for _, line := range strings.Split("node a|node b|job lm groups=0,0,0|"+start+"|"+fault, "|") {
						if line == "" {
							continue
						}
						if err := w.run(line, out); err != nil {
							t.Fatalf("%s: %q: %v", name, line, err)
						}
					}
					was := w.current()
					entry := replica.RegisterNode{Node: replica.Node{Name: "b", Incarnation: 2, Session: 1, Boot: replica.BootID{byte(boot)}}, Running: w.running(runs)}
					w.apply("next life", entry, out)
					checkNextLife(t, name, was, w.current(), entry, boot == 2)
					before := w.current()
					if w.apply("again", entry, out); w.current() != before {
						t.Errorf("%s: the entry repeated changes the job", name)
					}
					if text := out.String(); strings.Contains(text, "BROKEN") || strings.Contains(text, "refused") {
						t.Errorf("%s:\n%s", name, text)
					}
				}
			}
		}
	}
}

func checkNextLife(t *testing.T, name string, was, is *replica.Job, entry replica.RegisterNode, rebooted bool) {
	t.Helper()
	ended := false
	for r, c := range was.Ranks {
		if c.Node != "b" || c.Incarnation == 0 {
			continue
		}
		proved := !rebooted && slices.Contains(entry.Running, replica.Running{Job: was.ID, Rank: replica.Rank(r), Incarnation: c.Incarnation})
		dead := ClaimFaulted(is, replica.Rank(r), is.Ranks[r], true)
		died := slices.ContainsFunc(was.Faults, func(f replica.Fault) bool { return f.Kind == replica.ProcessDead && int(f.Rank) == r })
		if goes := is.Ranks[r].NodeIncarnation == 2; goes != proved || dead != (!proved || died) {
			t.Errorf("%s: rank %d is claimed for life %d, condition %v", name, r, is.Ranks[r].NodeIncarnation, dead)
		}
		ended = ended || !proved && !ClaimFaulted(was, replica.Rank(r), c, true)
	}
	void := was.Phase == replica.Planned && plansFrom(was.Plan, replica.Holder{Node: "b", Incarnation: 1})
	if closes := is.ClosedEpoch > was.ClosedEpoch; closes != (ended || void) && was.ClosedEpoch < was.Epoch {
		t.Errorf("%s: closed %v, a claim ended %v, the plan is void %v", name, closes, ended, void)
	}
}
