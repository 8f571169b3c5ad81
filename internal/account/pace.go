package account

import (
	"time"

	"github.com/replicad/replicad/replica"
)

// Spell is how long a Pace counts before it begins anew.
const Spell = 100 * time.Millisecond

// Pace limits how often a node asks the leader for a user in a spell. Each of the user's jobs has a share: one in a loop leaves the others theirs.
// What no other job asked for is for whoever asks. A request that may not go now waits for the next spell.
type Pace struct {
	most  int // requests of one user in a spell; 0: any number
	since time.Time
	waits bool // a request of this spell waits for the next one
	users map[uint32]*asked
}

// asked is what was asked for a user.
type asked struct {
	all  int
	by   map[replica.JobID]int // what each job asks in this spell, with each try of what has to wait
	left map[replica.JobID]int // of each job's share, which is no more than it asked in the spell before: what it has not asked in this one
	kept int                   // the sum of left
	sent int                   // requests in the spell before
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
	u.by[job]++
	switch {
	case u.left[job] > 0:
		u.left[job]--
		u.kept--
	case p.most > 0 && u.all+u.kept >= p.most:
		p.waits = true
		return false
	}
	u.all++
	return true
}

// Next is when the next spell is due, if a request waits for it.
func (p *Pace) Next() (at time.Time, waits bool) { return p.since.Add(Spell), p.waits }

// Tick begins the next spell once it is due.
func (p *Pace) Tick(now time.Time) {
	if now.Sub(p.since) < Spell {
		return
	}
	p.since, p.waits = now, false
	for user, u := range p.users {
		if len(u.by) == 0 {
			delete(p.users, user)
			continue
		}
		next := &asked{by: map[replica.JobID]int{}, left: make(map[replica.JobID]int, len(u.by)), sent: u.all}
		for job, n := range u.by {
			share := min(n, p.most/len(u.by))
			next.left[job] = share
			next.kept += share
		}
		p.users[user] = next
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
