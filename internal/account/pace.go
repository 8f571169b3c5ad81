package account

import (
	"time"

	"github.com/replicad/replicad/replica"
)

// Spell is how long a Pace counts before it begins anew.
const Spell = 100 * time.Millisecond

// Pace limits how often a node asks the leader for a user in a spell. The user's jobs share that: one in a loop leaves the others their parts.
// A request that may not go now waits for the next spell.
type Pace struct {
	most  int // requests of one user in a spell; 0: any number
	since time.Time
	users map[uint32]*asked
}

// asked is what was asked for a user.
type asked struct {
	all    int
	by     map[replica.JobID]int // of jobs that ask in this spell, those that have to wait among them
	before int                   // jobs that asked in the spell before
	sent   int                   // requests in that one
}

// NewPace returns the pace of a node.
func NewPace(most int) *Pace { return &Pace{most: most, users: map[uint32]*asked{}} }

// May tells whether one more request of a user's job may go now. It counts the request where it may.
func (p *Pace) May(user uint32, job replica.JobID) bool {
	u := p.users[user]
	if u == nil {
		u = &asked{by: map[replica.JobID]int{}}
		p.users[user] = u
	}
	sent := u.by[job]
	u.by[job] = sent
	share := max(1, p.most/max(len(u.by), u.before))
	if p.most > 0 && (u.all >= p.most || sent >= share) {
		return false
	}
	u.all++
	u.by[job]++
	return true
}

// Tick begins the next spell once it is due.
func (p *Pace) Tick(now time.Time) {
	if now.Sub(p.since) < Spell {
		return
	}
	p.since = now
	for user, u := range p.users {
		if len(u.by) == 0 {
			delete(p.users, user)
			continue
		}
		p.users[user] = &asked{by: map[replica.JobID]int{}, before: len(u.by), sent: u.all}
	}
}

// Sent counts what was asked for each user in the spell before this one.
func (p *Pace) Sent() map[uint32]int {
	sent := make(map[uint32]int, len(p.users))
	for user, u := range p.users {
		sent[user] = u.sent
	}
	return sent
}
