package leader

import (
	"fmt"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// torchrun has a node report its agents, by the last digit of their names.
func (c *chair) torchrun(n *nodeLink, digits string) {
	m := control.AgentsReport{Job: fixture.JobID}
	for _, d := range digits {
		m.Agents = append(m.Agents, wire.Agent{ID: fmt.Sprintf("%015x%c", 0, d), Nodes: 2, Address: fmt.Sprintf("%s:%c", n.node.Name, d)})
	}
	c.handle(c.t.Context(), nodeMessage{n, m})
}

// rounds is what a node's agents are told, in short.
func (c *chair) rounds(n *nodeLink) (list []string) {
	c.t.Helper()
	for _, m := range told(c.t, n) {
		if m, ok := m.(control.AgentRound); ok {
			list = append(list, fmt.Sprintf("%c rank %d of %d.%d at %s, %d wait", m.Round.ID[15], m.Round.Rank, m.Round.Number>>32, uint32(m.Round.Number), m.Round.Head, m.Round.Waits))
		}
	}
	return list
}

func TestAgentsOfTorchrunMeet(t *testing.T) {
	c := newChair(t)
	n1, n2 := c.node("n1", 11), c.node("n2", 22)
	c.brought["n1"], c.brought["n2"] = n1, n2
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Ranks = make([]replica.Claimed, 2) })) // nobody holds one yet
	heard := func(what string, n *nodeLink, want ...string) {
		t.Helper()
		if got := c.rounds(n); !slices.Equal(got, want) {
			t.Errorf("%s: %s hears %q, want %q", what, n.node.Name, got, want)
		}
	}
	c.torchrun(n1, "")
	if led.agents != nil {
		t.Error("a job without agents has a room")
	}
	c.torchrun(n1, "1")
	heard("one alone", n1)
	c.torchrun(n2, "2")
	heard("two", n1, "1 rank 0 of 7.1 at n1:1, 0 wait")
	heard("two", n2, "2 rank 1 of 7.1 at n1:1, 0 wait")

	// A link that is lost, and made anew, changes nothing for the others.
	c.handle(t.Context(), leaderLinkDown{nodeLink: n2})
	n2 = c.node("n2", 22)
	c.agentsLinked("n2")
	c.torchrun(n2, "2")
	heard("linked anew", n1)
	heard("linked anew", n2, "2 rank 1 of 7.1 at n1:1, 0 wait")

	c.torchrun(n1, "13")
	c.rounds(n1) // that it is a spare
	fault := replica.Fault{Epoch: 3, Kind: replica.NodeDead, Node: "n2", NodeIncarnation: 22}
	was := led.job
	led.job = fixture.Changed(fixture.Closed(was), func(j *replica.Job) { j.Faults = []replica.Fault{fault} })
	c.agentsFollow(led, was, led.job)
	heard("a node is dead", n1, "1 rank 0 of 7.1 at n1:1, 1 wait")

	// It is back while the fault is still on record: that was of its life before.
	c.torchrun(n2, "4")
	c.agentsFollow(led, led.job, fixture.Changed(led.job, func(*replica.Job) {}))
	if !led.agents.Any() || len(c.rounds(n1)) != 1 {
		t.Error("the new agent of the node is not counted")
	}
	c.agentsFollow(led, led.job, fixture.Changed(led.job, func(j *replica.Job) { j.Phase = replica.Ended }))
	if led.agents != nil {
		t.Error("a job that has ended has a room")
	}
}

// A new leader hears of two spares before it hears of those that train.
func TestAgentsOfARoundBeforeThisLeader(t *testing.T) {
	c := newChair(t)
	n1, n2, n3 := c.node("n1", 11), c.node("n2", 22), c.node("n3", 33)
	led := c.knows(fixture.Job()) // n1 and n2 hold its ranks
	c.brought["n3"] = n3
	c.torchrun(n3, "34")
	if got := c.rounds(n3); len(got) != 0 {
		t.Errorf("beside ranks that are held: %q", got)
	}
	c.brought["n1"], c.brought["n2"] = n1, n2
	was := led.job
	led.job = fixture.Changed(fixture.Closed(was), func(j *replica.Job) {
		j.Faults = []replica.Fault{
			{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4, Node: "n1", NodeIncarnation: 11}}
	})
	c.agentsFollow(led, was, led.job)
	if got := c.rounds(n3); len(got) != 0 {
		t.Errorf("beside one rank that is held: %q", got)
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) {
		j.Faults = append(slices.Clone(j.Faults), replica.Fault{Epoch: 3, Kind: replica.NodeDead, Node: "n2", NodeIncarnation: 22})
	})
	c.agentsFollow(led, was, led.job)
	if got, want := c.rounds(n3), []string{"3 rank 0 of 7.1 at n3:3, 0 wait", "4 rank 1 of 7.1 at n3:3, 0 wait"}; !slices.Equal(got, want) {
		t.Errorf("nobody holds a rank: %q, want %q", got, want)
	}
}

// Where a torchrun has ended, the others end once a rank is nobody's.
func TestAgentsHearWhetherARankIsNobodys(t *testing.T) {
	c := newChair(t)
	n1, n2 := c.node("n1", 11), c.node("n2", 22)
	c.brought["n1"], c.brought["n2"] = n1, n2
	led := c.knows(fixture.Job())
	if is := c.agentsHeld(led); !is.All || !slices.Equal(is.Nodes, []replica.NodeName{"n1", "n2"}) {
		t.Errorf("all ranks are held, and it tells the room %+v", is)
	}
	led.job = fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Ranks = nil })
	if is := c.agentsHeld(led); is.All || len(is.Nodes) != 0 {
		t.Errorf("no rank was held ever, and it tells the room %+v", is)
	}
	for _, change := range []func(*replica.Job){
		func(j *replica.Job) { j.Ranks = []replica.Claimed{j.Ranks[0], {}} },
		func(j *replica.Job) {
			j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 1, Incarnation: 5, Node: "n2", NodeIncarnation: 22}}
		},
	} {
		led.job = fixture.Changed(fixture.Job(), change)
		if is := c.agentsHeld(led); is.All || !slices.Equal(is.Nodes, []replica.NodeName{"n1"}) {
			t.Errorf("rank 1 is nobody's, and it tells the room %+v", is)
		}
	}
}
