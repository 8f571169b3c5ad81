package launchers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Fill enters what launchers here have for the job, and which processes they have started, into the node's report.
func (v View) Fill(r *replica.NodeReport, now time.Time) {
	r.Offers, r.Spare = v.offers(now)
	r.Launchers, r.Short = v.count(), v.pool.short.of(v.job.Record().Name, now)
	r.Starting, r.StartingPIDs, r.StartingHalted = v.starting(now)
}

// offers counts the processes that this node could still start for the job.
func (v View) offers(now time.Time) (n int, spare bool) {
	name := v.job.Record().Name
	if v.pool.short.of(name, now) != "" {
		return 0, false // a process that is started now may find no room
	}
	spare = true
	free := map[int]int{} // by user
	for _, l := range v.pool.all {
		if l.accepted && l.hello.Job == name && !l.deaf && !l.done {
			free[l.user] += max(0, l.free())
			spare = spare && l.hello.Spare
		}
	}
	for user, f := range free {
		n += min(f, v.pool.seats(user))
	}
	return min(n, maxSeats), spare && n > 0
}

// seats is for how many more processes of a user there are sessions here: its launchers have one each, and so have the processes that
// they run.
func (p *Pool) seats(user int) int {
	n := p.cfg.PerUser.Sessions
	if n == 0 {
		return maxSeats
	}
	for _, l := range p.all {
		if l.user == user {
			n -= 1 + l.starts.running()
		}
	}
	return max(0, n)
}

// tooMany is that a launcher names more ranks to be started here than its user has sessions for; empty: it does not. That is judged where
// they would be started: not of one that comes back, whose processes run, nor of a spare, nor for a job that has trained. job is nil
// where there is none yet.
func (p *Pool) tooMany(l *launcher, job *replica.Job) (code int32, text string) {
	if l.hello.Joined != (replica.JobID{}) || l.hello.Spare || job != nil && job.Phase != replica.Opening {
		return 0, ""
	}
	named, seats := min(len(l.hello.Ranks), int(l.hello.Capacity)), p.seats(l.user)
	if named <= seats {
		return 0, ""
	}
	most := cmp.Or(p.cfg.PerUser.Sessions, session.MaxSessions)
	if code = wire.CodeAgain; named >= most { // however many processes end: the launcher has a session too
		code = wire.CodeRefused
	}
	return code, fmt.Sprintf("job %q: its launcher names %d ranks to start here, and user %d has sessions for %d more processes on "+
		"this node, of %d (per_user.sessions): "+
		"name fewer ranks, or end some of this user's processes here", l.hello.Job, named, l.user, seats, most)
}

// count counts the launchers of the job here.
func (v View) count() (n int) {
	id := v.job.Record().ID
	for _, l := range v.pool.all {
		if l.accepted && l.job == id && !l.done {
			n++
		}
	}
	return n
}

// starting lists the ranks for which a launcher here runs a process that has not attached: of their claims nothing is known yet. One that
// has attached and is dead is none of them, though its launcher has not reported yet that it ended.
func (v View) starting(now time.Time) (ranks []replica.Rank, pids []uint64, halted []replica.Rank) {
	at, name := map[replica.Rank]start{}, v.job.Record().Name
	for _, l := range v.pool.all {
		if !l.accepted || l.hello.Job != name {
			continue
		}
		for _, r := range l.starts.ranks() {
			if l.starts.silent(r, l.heard, now, v.pool.takeUp()) {
				continue // its launcher does not answer
			}
			if rank, _ := v.job.Rank(r); !l.starts.of(r).attached && !rank.Alive {
				at[r] = l.starts.of(r)
			}
		}
	}
	for _, r := range slices.Sorted(maps.Keys(at)) {
		ranks, pids = append(ranks, r), append(pids, at[r].pid)
		if at[r].halted {
			halted = append(halted, r)
		}
	}
	return ranks, pids, halted
}
