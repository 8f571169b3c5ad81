package agents

import (
	"reflect"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// peer is a launcher's session of a number.
type peer struct {
	session.Peer
	id uint64
}

func (p peer) ID() uint64 { return p.id }

func TestRoom(t *testing.T) {
	lm, other := replica.JobID{1}, replica.JobID{2}
	a, b := wire.Agent{ID: "a"}, wire.Agent{ID: "b"}
	report := func(job replica.JobID, list ...wire.Agent) act.Effect {
		return act.Send{Msg: control.AgentsReport{Job: job, Agents: list}}
	}
	told := func(job replica.JobID, id string) act.Event {
		return Told{control.AgentRound{Job: job, Round: wire.Round{ID: id}}}
	}
	r, now := New(), time.Unix(1, 0)
	r.Step(now)
	if at, ok := r.Next(); ok {
		t.Errorf("an empty room has something to do at %v", at)
	}
	for _, c := range []struct {
		what string
		ev   act.Event
		pass time.Duration
		want []act.Effect
	}{
		{"an agent comes", Said{lm, 7, a}, 0, []act.Effect{report(lm, a)}},
		{"another one", Said{lm, 8, b}, 0, []act.Effect{report(lm, a, b)}},
		{"of another job", Said{other, 9, a}, 0, []act.Effect{report(other, a)}},
		{"it is told something", told(lm, "b"), 0, []act.Effect{Tell{8, wire.Round{ID: "b"}}}},
		{"one that is not here", told(other, "b"), 0, nil},
		{"a launcher without an agent goes", act.Gone{Peer: peer{id: 6}}, 0, nil},
		{"one with goes", act.Gone{Peer: peer{id: 9}}, 0, []act.Effect{report(other)}},
		{"another leader", act.Linked{}, 0, []act.Effect{report(lm, a, b)}},
		{"not yet", act.Gone{Peer: peer{id: 6}}, again - 1, nil},
		{"it is told again", act.Gone{Peer: peer{id: 6}}, 1, []act.Effect{report(lm, a, b)}},
	} {
		now = now.Add(c.pass)
		r.Learn(now, c.ev)
		if got := r.Step(now); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}
