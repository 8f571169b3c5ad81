package host

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
)

// reports are those of agents that the leader was sent since.
func (d *rig) reports() (list []control.AgentsReport) {
	d.t.Helper()
	for _, m := range d.says() {
		if r, ok := m.(control.AgentsReport); ok {
			list = append(list, r)
		}
	}
	return list
}

func TestAgentSpeaksThroughItsLauncher(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Job())
	peer, end := d.session(0)
	d.informed = false // so that its launcher is not accepted yet
	d.handleSession(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: 2}})
	agent := wire.Agent{ID: "0123456789abcdef", Nodes: 2, Address: "n1:1"}
	d.handleSession(session.RunAgent{Peer: peer, Agent: agent})
	if got := d.reports(); got != nil {
		t.Errorf("reported before its launcher has a job: %+v", got)
	}
	d.informed = true
	d.launchers.Serve(time.Now())
	if h, _ := end.reads(); h.Type != wire.MRunOK {
		t.Fatalf("message %d", h.Type)
	}
	d.handleSession(session.RunAgent{Peer: peer, Agent: agent})
	if got, want := d.reports(), []control.AgentsReport{{Job: fixture.JobID, Agents: []wire.Agent{agent}}}; !reflect.DeepEqual(got, want) {
		t.Errorf("reported %+v, want %+v", got, want)
	}
	d.resend()
	heard := d.says()
	reported := slices.IndexFunc(heard, func(m any) bool { r, ok := m.(control.AgentsReport); return ok && len(r.Agents) == 1 })
	all := slices.IndexFunc(heard, func(m any) bool { k, ok := m.(control.KVKept); return ok && k.Done })
	if reported < 0 || all < reported { // a round may begin once all is said
		t.Errorf("another leader hears of agents at place %d, and that all is said at %d: %+v", reported, all, heard)
	}
	round := wire.Round{ID: agent.ID, Number: 7, Head: "n1:1"}
	d.leaderSays(control.AgentRound{Job: fixture.JobID, Round: round})
	h, body := end.reads()
	if got, err := wire.ParseRound(body); err != nil || h.Type != wire.MRunRound || got != round {
		t.Errorf("message %d, %+v, %v; want %+v", h.Type, got, err, round)
	}
	d.peerGone(peer)
	if got := d.reports(); len(got) != 1 || len(got[0].Agents) != 0 {
		t.Errorf("gone, it is reported: %+v", got)
	}
}
