// Package agents is the room of the host for torchrun's agents: through which launchers of this node they speak, and what they stand in. The leader
// is told all of a job's, at once where something changes, and again now and then: its room is made of nothing else.
//
// A Room belongs to the host's goroutine. It starts nothing, and imports the messages alone.
package agents

import (
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// again is how often the leader is told what it knows: it may have taken this node for dead.
const again = 5 * time.Second

type (
	// Said is what an agent says through a launcher, which is a session's peer.
	Said struct {
		Job   replica.JobID
		Peer  uint64
		Agent wire.Agent
	}
	// Told is what the leader has an agent do.
	Told struct{ control.AgentRound }
)

func (Said) IsEvent() {}
func (Told) IsEvent() {}

type (
	// Tell goes to a launcher.
	Tell struct {
		Peer  uint64
		Round wire.Round
	}
)

func (Tell) IsEffect() {}

// agent is one, and through whom it speaks.
type agent struct {
	wire.Agent
	job replica.JobID
}

// Room knows the agents of this node.
type Room struct {
	agents map[uint64]agent // by peer
	due    map[replica.JobID]bool
	tells  []act.Effect
	nextAt time.Time // all are reported again
}

// New returns an empty room.
func New() *Room { return &Room{agents: map[uint64]agent{}, due: map[replica.JobID]bool{}} }

// Learn takes an event in.
func (r *Room) Learn(_ time.Time, ev act.Event) {
	switch ev := ev.(type) {
	case Said:
		r.agents[ev.Peer] = agent{ev.Agent, ev.Job}
		r.due[ev.Job] = true
	case act.Gone:
		if a, known := r.agents[ev.Peer.ID()]; known {
			delete(r.agents, ev.Peer.ID())
			r.due[a.job] = true
		}
	case act.Linked:
		r.all()
	case Told:
		for peer, a := range r.agents {
			if a.job == ev.Job && a.ID == ev.Round.ID {
				r.tells = append(r.tells, Tell{peer, ev.Round})
			}
		}
	}
}

func (r *Room) all() {
	for _, a := range r.agents {
		r.due[a.job] = true
	}
}

// Step returns what is to be said.
func (r *Room) Step(now time.Time) (out []act.Effect) {
	if !now.Before(r.nextAt) {
		r.nextAt = now.Add(again)
		r.all()
	}
	for job := range r.due {
		m := control.AgentsReport{Job: job}
		for _, peer := range slices.Sorted(maps.Keys(r.agents)) {
			if a := r.agents[peer]; a.job == job {
				m.Agents = append(m.Agents, a.Agent)
			}
		}
		out = append(out, act.Send{Msg: m})
	}
	clear(r.due)
	out, r.tells = append(out, r.tells...), nil
	return out
}

// Next is when Step has something to do, whatever happens.
func (r *Room) Next() (at time.Time, ok bool) { return r.nextAt, len(r.agents) > 0 }
