package agents

import (
	"fmt"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Transcripts play the agents of a node, and the leader.
func TestTranscripts(t *testing.T) {
	roomtest.Transcripts(t, func(n *roomtest.Node, _ []string) (act.Room, roomtest.Own) { return New(), play{n} })
}

type play struct{ *roomtest.Node }

// job reads its number.
func job(word string) replica.JobID { return replica.JobID{byte(roomtest.Number(word))} }

func (p play) Do(verb string, args []string) (bool, error) {
	switch verb {
	case "agent": // NAME LAUNCHER JOB: speaks
		p.Learn(Said{job(args[2]), roomtest.Number(args[1]), wire.Agent{ID: args[0]}})
	case "order": // NAME JOB: of the leader
		p.Learn(Told{control.AgentRound{Job: job(args[1]), Round: wire.Round{ID: args[0]}}})
	case "gone": // LAUNCHER
		p.Learn(act.Gone{Peer: &roomtest.Peer{Session: roomtest.Number(args[0])}})
	default:
		return false, nil
	}
	return true, nil
}

func (p play) Text(v any) string {
	switch v := v.(type) {
	case Tell:
		return fmt.Sprintf("launcher %d: round of %s", v.Peer, v.Round.ID)
	case control.AgentsReport:
		text := fmt.Sprintf("agents of job %d:", v.Job[0])
		for _, a := range v.Agents {
			text += " " + a.ID
		}
		return text
	}
	return fmt.Sprintf("%T", v)
}
