package leader

import (
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/leader/voters"
	"github.com/replicad/replicad/replica"
)

// votersNow says of each node in Raft's configuration whether it votes now.
func votersNow(l *Leader) []control.VoterStatus {
	var seats []voters.Seat
	for _, v := range l.cons.Voters() {
		seats = append(seats, voters.Seat{Name: v.Name, Addr: v.Addr})
	}
	for _, v := range l.cons.Joining() {
		seats = append(seats, voters.Seat{Name: v.Name, Addr: v.Addr, Joining: true})
	}
	return l.voters.Table(seats, l.cons.ID(), func(n replica.NodeName) voters.Seen {
		upTo, revoked := l.view.Revokes(replica.NodeRole, string(n))
		return voters.Seen{Linked: l.links.of[n] != nil, Quiet: l.cfg.Quiet(n), Revoked: revoked && l.cfg.Newest(replica.NodeRole, string(n)) <= upTo}
	})
}

// sayVoters tells the launchers of all jobs, once, that the next loss of a voter would stop commits although it need not.
func sayVoters(l *Leader) {
	text := l.voters.Due(votersNow(l), l.now())
	if text == "" {
		return
	}
	l.log.Failed("voters", string(l.cons.ID()), text)
	for id, led := range l.jobs {
		if led.job.Phase != replica.Ended {
			l.tell(id, text)
		}
	}
}

// votersText lists who has a vote, who does not give it and why, and who is on the way to one.
func votersText(l *Leader) string {
	text := "VOTER\tADDRESS"
	for _, v := range votersNow(l) {
		text += fmt.Sprintf("\n%s\t%s", v.Name, v.Addr)
		switch {
		case v.Name == l.cons.ID():
			text += "\tleads"
		case v.Joining:
			text += "\t" + v.Why
		case !v.Votes:
			text += "\tdoes not vote: " + v.Why
		}
	}
	return text
}
