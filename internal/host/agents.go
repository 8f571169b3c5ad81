package host

import (
	"github.com/replicad/replicad/internal/host/agents"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
)

// agentSays takes what one of torchrun's agents says through its launcher, which has a job.
func (h *Host) agentSays(ev session.RunAgent) {
	if l := h.launchers[ev.Peer.ID()]; l != nil && l.accepted && !l.done {
		learn(h.agents, agents.Event(agents.Said{Job: l.job, Peer: ev.Peer.ID(), Agent: ev.Agent}), h.doAgents)
	}
}

func (h *Host) doAgents(e agents.Effect) {
	switch e := e.(type) {
	case agents.Report:
		h.send(e.AgentsReport)
	case agents.Tell:
		if l := h.launchers[e.Peer]; l != nil {
			l.peer.Send(wire.RankHeader{Type: wire.MRunRound}, e.Round.Append(nil)) //nolint:errcheck // a dead peer is Gone
		}
	}
}
