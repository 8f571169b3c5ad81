package recovery_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

func TestLadderCoversEveryFault(t *testing.T) {
	want := map[replica.FaultKind]recovery.Rung{
		replica.Exception: recovery.InProcess, replica.Torn: recovery.InProcess,
		replica.ProcessDead: recovery.Process, replica.Hang: recovery.Process, replica.BadDigest: recovery.Process,
		replica.NodeDead: recovery.Elsewhere, replica.Silent: recovery.Elsewhere, replica.Health: recovery.Elsewhere, replica.Drain: recovery.Elsewhere,
	}
	for k := replica.ProcessDead; k <= replica.Silent; k++ {
		if got := recovery.FirstRung(k); got != want[k] {
			t.Errorf("%v takes rung %v, want %v", k, got, want[k])
		}
	}
	if got := recovery.Elsewhere.Next().Next(); got != recovery.WholeJob {
		t.Errorf("the ladder ends at %v", got)
	}
}

func TestBudget(t *testing.T) {
	b := recovery.Budget{Recoveries: 2, Window: time.Minute}
	began := []time.Duration{0, 10 * time.Second, 20 * time.Second}
	if !b.Spent(began, 30*time.Second) {
		t.Error("three recoveries within a minute don't spend a budget of two")
	}
	if b.Spent(began, 61*time.Second) {
		t.Error("a recovery older than the window counts")
	}
	slow := make([]time.Duration, 9) // imports that take minutes: no two of them are within the window
	for i := range slow {
		slow[i] = time.Duration(i) * time.Hour
	}
	if b.Spent(slow[:8], 7*time.Hour) || !b.Spent(slow, 8*time.Hour) {
		t.Error("a loop of slow recoveries doesn't end after four times the budget")
	}
}

// TestCrashLoopEnds has a rank die as often as it is started: the job ends with a distinct reason instead of looping.
func TestCrashLoopEnds(t *testing.T) {
	w := newWorld()
	w.addNode("a", 2, false, nil)
	w.addNode("b", 2, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{})
	if err := w.wait(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	for i := 0; w.state().Phase != replica.Ended; i++ {
		if i > 40 {
			t.Fatalf("still going after %d crashes without a step", i)
		}
		p := w.process("0")
		p.alive = false
		w.nodes[w.state().Ranks[0].Node].offers++
		if err := w.wait(5 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := w.state().EndReason[:14], "do not requeue"; got != want {
		t.Errorf("the job ended with %q, want %q", w.state().EndReason, want)
	}
}

// TestWantsSpendNoBudget has a rank's process die for want of something, again and again: the job goes on. The deaths after that count.
func TestWantsSpendNoBudget(t *testing.T) {
	w := newWorld()
	w.addNode("a", 2, false, nil)
	w.addNode("b", 2, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{})
	if err := w.wait(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	dies := func(short string) {
		n := w.nodes[w.state().Ranks[0].Node]
		w.process("0").alive, n.short = false, short
		n.offers++
		if err := w.wait(time.Second); err != nil {
			t.Fatal(err)
		}
		n.short = ""
		if err := w.wait(5 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		if dies("memory"); w.state().Phase == replica.Ended {
			t.Fatalf("ended after %d wants: %s", i+1, w.state().EndReason)
		}
	}
	deaths := 0
	for ; w.state().Phase != replica.Ended && deaths < 40; deaths++ {
		dies("")
	}
	if most := recovery.DefaultBudget().Recoveries; deaths != most+1 {
		t.Errorf("%d deaths end a job whose budget is %d", deaths, most)
	}
}

// TestABudgetOutlivesItsLeaders: a leader that falls in the middle of each recovery, or of each third, has the next one count on. A step that is committed has it begin anew.
func TestABudgetOutlivesItsLeaders(t *testing.T) {
	for _, each := range []int{1, 3} {
		w := training(t)
		most := recovery.DefaultBudget().Recoveries
		dies := func(i int) {
			n := w.nodes[w.state().Ranks[0].Node]
			w.process("0").alive = false
			n.offers++
			w.must(t, w.wait(2*time.Second))
			w.handOut()
			if i%each == 0 && w.state().Phase != replica.Ended {
				w.newLeader()
			}
			w.must(t, w.wait(5*time.Second))
			w.handOut()
		}
		for i := range most {
			dies(i)
		}
		w.must(t, w.step(true))
		w.must(t, w.wait(2*time.Second))
		w.handOut()
		deaths := 0
		for ; w.state().Phase != replica.Ended && deaths < 3*most; deaths++ {
			dies(deaths)
		}
		if deaths != most+1 {
			t.Errorf("leaders fall in each %d. recovery: %d deaths end a job whose budget is %d", each, deaths, most)
		}
		if !strings.Contains(w.state().EndReason, fmt.Sprintf("recovered %d times without a step", most+1)) {
			t.Errorf("it ended: %s", w.state().EndReason)
		}
	}
}

func placement(ranks []replica.NodeName, groups []replica.GroupID, labels map[replica.NodeName]string, usable ...replica.NodeName) recovery.Placement {
	p := recovery.Placement{Job: replica.JobID{3}, Layout: replica.Layout{World: uint32(len(ranks)), Groups: groups}, Nodes: map[replica.NodeName]replica.Node{}, Usable: map[replica.NodeName]bool{}, Copies: 2}
	for i, n := range ranks {
		p.Ranks = append(p.Ranks, replica.Claimed{Incarnation: replica.Incarnation(i + 1), Node: n})
		p.Nodes[n] = replica.Node{Name: n, Labels: map[string]string{"rack": labels[n]}}
	}
	for _, n := range usable {
		p.Usable[n] = true
		p.Nodes[n] = replica.Node{Name: n, Labels: map[string]string{"rack": labels[n]}}
	}
	return p
}

func TestPlaceMirrors(t *testing.T) {
	racks := map[replica.NodeName]string{"a": "1", "b": "1", "c": "2", "d": "2"}
	t.Run("never on the rank's own node", func(t *testing.T) {
		byRank, byGroup := recovery.PlaceMirrors(placement([]replica.NodeName{"a", "a"}, []replica.GroupID{0, 0}, nil, "a"))
		if len(byRank[0])+len(byRank[1])+len(byGroup[0]) != 0 {
			t.Errorf("mirrors %v %v in a cluster of one node", byRank, byGroup)
		}
	})
	t.Run("another failure domain while one is free", func(t *testing.T) {
		byRank, _ := recovery.PlaceMirrors(placement([]replica.NodeName{"a", "b", "c"}, []replica.GroupID{0, 0, 0}, racks, "a", "b", "c", "d"))
		for r, list := range byRank {
			own := []string{"1", "1", "2"}[r]
			if len(list) != 1 || racks[list[0]] == own {
				t.Errorf("rank %d in rack %s is mirrored by %v", r, own, list)
			}
		}
	})
	t.Run("a group with members on two nodes needs no mirror, a lone member does", func(t *testing.T) {
		_, byGroup := recovery.PlaceMirrors(placement([]replica.NodeName{"a", "b", "a"}, []replica.GroupID{0, 0, 1}, nil, "a", "b", "c"))
		if len(byGroup[0]) != 0 || len(byGroup[1]) != 1 || byGroup[1][0] == "a" {
			t.Errorf("group mirrors %v", byGroup)
		}
	})
	t.Run("stays where it is", func(t *testing.T) {
		in := placement([]replica.NodeName{"a", "b"}, []replica.GroupID{0, 0}, nil, "a", "b")
		in.Mirrors, in.GroupMirrors = recovery.PlaceMirrors(in)
		for i := range 20 { // newcomers, some of which weigh more
			n := replica.NodeName(fmt.Sprintf("n%d", i))
			in.Usable[n], in.Nodes[n] = true, replica.Node{Name: n}
		}
		byRank, _ := recovery.PlaceMirrors(in)
		if !slices.Equal(byRank[0], in.Mirrors[0]) || !slices.Equal(byRank[1], in.Mirrors[1]) {
			t.Errorf("mirrors moved from %v to %v for nothing", in.Mirrors, byRank)
		}
	})
	t.Run("each node gets its share", func(t *testing.T) {
		in := placement(nil, nil, nil)
		var nodes []replica.NodeName
		for i := range 64 {
			n := replica.NodeName(fmt.Sprintf("n%d", i/8))
			in.Ranks = append(in.Ranks, replica.Claimed{Incarnation: 1, Node: n})
			in.Layout.Groups = append(in.Layout.Groups, replica.GroupID(i))
			in.Nodes[n], in.Usable[n] = replica.Node{Name: n}, true
		}
		for n := range in.Nodes {
			nodes = append(nodes, n)
		}
		in.Layout.World = 64
		even := func(when string, most int) {
			t.Helper()
			byRank, byGroup := recovery.PlaceMirrors(in)
			for _, lists := range [][][]replica.NodeName{byRank, byGroup} {
				load := map[replica.NodeName]int{}
				for _, list := range lists {
					load[list[0]]++
				}
				for _, n := range nodes {
					if load[n] > most {
						t.Errorf("%s: node %s has %d of 64 mirrors, the most is to be %d", when, n, load[n], most)
					}
				}
			}
			in.Mirrors, in.GroupMirrors = byRank, byGroup
		}
		for seed := range byte(20) {
			in.Job, in.Mirrors, in.GroupMirrors = replica.JobID{seed}, nil, nil
			in.Usable["n3"] = true
			even("at the beginning", 9)
			in.Usable["n3"] = false // its ranks stay where they are, its mirrors go elsewhere
			even("without a node", 11)
		}
	})
	t.Run("spreads", func(t *testing.T) {
		var nodes []replica.NodeName
		for i := range 10 {
			nodes = append(nodes, replica.NodeName(fmt.Sprintf("n%d", i)))
		}
		var ranks []replica.NodeName
		var groups []replica.GroupID
		for i := range 200 {
			ranks, groups = append(ranks, nodes[i%10]), append(groups, 0)
		}
		byRank, _ := recovery.PlaceMirrors(placement(ranks, groups, nil, nodes...))
		load := map[replica.NodeName]int{}
		for _, list := range byRank {
			load[list[0]]++
		}
		for _, n := range nodes {
			if load[n] < 18 || load[n] > 22 {
				t.Errorf("node %s has %d of 200 mirrors", n, load[n])
			}
		}
	})
}
