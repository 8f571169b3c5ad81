package leader

import (
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/leader/agents"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// agentsAway is how many daemon_grace torchrun's agents of a daemon that is away keep their places: as long as its ranks do.
const agentsAway = 10

// agentsReported takes in which of torchrun's agents a node has.
func (l *Leader) agentsReported(from replica.NodeName, m control.AgentsReport) {
	led := l.jobs[m.Job]
	if led == nil || led.job == nil || led.job.Phase == replica.Ended || led.agents == nil && len(m.Agents) == 0 {
		return
	}
	if led.agents == nil {
		led.agents = agents.New(l.term, l.numbered.round, l.now(), agentsAway*l.timing.DaemonGrace)
	}
	led.agents.Learn(l.now(), agents.Reported{Node: from, Agents: m.Agents})
	l.agentsTurn(led)
}

// agentsLinked tells the rooms that what a node reported of its agents may be no more.
func (l *Leader) agentsLinked(node replica.NodeName) {
	for _, led := range l.jobs {
		if led.agents != nil {
			led.agents.Learn(l.now(), agents.Linked{Node: node})
		}
	}
}

// agentsFollow has the agents of a node that recovery has found dead go with it.
func (l *Leader) agentsFollow(led *ledJob, was, is *replica.Job) {
	if is.Phase == replica.Ended {
		led.agents = nil // their launchers hear how it ended
	}
	if led.agents == nil {
		return
	}
	for _, f := range is.Faults {
		if f.OfNode() && (was == nil || !slices.Contains(was.Faults, f)) {
			led.agents.Learn(l.now(), agents.Lost{Node: f.Node})
		}
	}
	l.agentsTurn(led)
}

// agentsTurn tells agents what they are to do.
func (l *Leader) agentsTurn(led *ledJob) {
	if led.agents == nil {
		return
	}
	if led.agents.Asks() {
		led.agents.Learn(l.now(), l.agentsHeld(led))
	}
	for _, t := range led.agents.Step(l.now()) {
		if n := l.links.of[t.Node]; n != nil {
			n.Send(control.AgentRound{Job: led.job.ID, Round: t.Round})
		}
	}
}

// agentsHeld is who holds the job's ranks, or may: what a node's agents stand in comes before what it keeps for the rendezvous.
func (l *Leader) agentsHeld(led *ledJob) agents.Held {
	is := agents.Held{Nodes: l.unbrought(led), All: len(led.job.Ranks) > 0}
	for r, c := range led.job.Ranks {
		if c.Incarnation == 0 || recovery.Vacated(led.job, replica.Rank(r)) {
			is.All = false
		} else {
			is.Nodes = append(is.Nodes, c.Node)
		}
	}
	return is
}
