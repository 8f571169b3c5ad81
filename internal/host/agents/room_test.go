package agents

import (
	"reflect"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

func TestRoom(t *testing.T) {
	lm, other := replica.JobID{1}, replica.JobID{2}
	a, b := wire.Agent{ID: "a"}, wire.Agent{ID: "b"}
	report := func(job replica.JobID, list ...wire.Agent) Effect {
		return Report{control.AgentsReport{Job: job, Agents: list}}
	}
	told := func(job replica.JobID, id string) Event {
		return Told{control.AgentRound{Job: job, Round: wire.Round{ID: id}}}
	}
	r, now := New(), time.Unix(1, 0)
	r.Step(now)
	if at, ok := r.Next(); ok {
		t.Errorf("an empty room has something to do at %v", at)
	}
	for _, c := range []struct {
		what string
		ev   Event
		pass time.Duration
		want []Effect
	}{
		{"an agent comes", Said{lm, 7, a}, 0, []Effect{report(lm, a)}},
		{"another one", Said{lm, 8, b}, 0, []Effect{report(lm, a, b)}},
		{"of another job", Said{other, 9, a}, 0, []Effect{report(other, a)}},
		{"it is told something", told(lm, "b"), 0, []Effect{Tell{8, wire.Round{ID: "b"}}}},
		{"one that is not here", told(other, "b"), 0, nil},
		{"a launcher without an agent goes", Gone{6}, 0, nil},
		{"one with goes", Gone{9}, 0, []Effect{report(other)}},
		{"another leader", Linked{}, 0, []Effect{report(lm, a, b)}},
		{"not yet", Gone{6}, again - 1, nil},
		{"it is told again", Gone{6}, 1, []Effect{report(lm, a, b)}},
	} {
		now = now.Add(c.pass)
		r.Learn(now, c.ev)
		if got := r.Step(now); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}
