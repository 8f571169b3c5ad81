package leader

import (
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/internal/account"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/replica"
)

// has is what users have of the cluster, by number: counted from the jobs that have not ended, those on their way into the log among them.
func (l *Leader) has() map[uint32]account.Use {
	all := maps.Clone(l.minting)
	if all == nil {
		all = map[uint32]account.Use{}
	}
	for id, job := range l.view.Jobs {
		if job.Phase != replica.Ended {
			all[job.Owner] = all[job.Owner].Plus(account.Use{Jobs: 1, Ranks: int(job.Layout.World), Rendezvous: l.kv.Bytes(id)})
		}
	}
	return all
}

// world is what a job of so many ranks is charged.
func world(ranks uint32) account.Use { return account.Use{Jobs: 1, Ranks: int(ranks)} }

// mayCreate refuses a job that its user's account has no room for.
func (l *Leader) mayCreate(m control.CreateRequest) error {
	if err := account.Check(m.Owner, l.has()[m.Owner], world(m.Layout.World), l.cfg.PerUser); err != nil {
		return fmt.Errorf("create job %q: %w", m.Name, err)
	}
	return nil
}

// charge counts a job while it is on its way into the log; the state counts it from then on.
func (l *Leader) charge(user uint32, more account.Use) (done func()) {
	if l.minting == nil {
		l.minting = map[uint32]account.Use{}
	}
	l.minting[user] = l.minting[user].Plus(more)
	return func() {
		left := l.minting[user].Plus(account.Use{Jobs: -more.Jobs, Ranks: -more.Ranks})
		if l.minting[user] = left; left == (account.Use{}) {
			delete(l.minting, user)
		}
	}
}

// mayMeet refuses what the user's account has no room for. What the job has for itself it has whatever its user's other jobs take: a recovery
// does not wait for them.
func (l *Leader) mayMeet(job *replica.Job, m control.KVRequest) error {
	more := rendezvous.Cost(m.Key, m.Value)
	if _, there := l.kv.Get(job.ID, m.Epoch, m.Key); there && m.Op == control.KVGet {
		return nil // it does not wait
	}
	if m.Op == control.KVCheck || m.Op == control.KVDelete || l.kv.Bytes(job.ID)+more <= account.Own(int(job.Layout.World)) {
		return nil
	}
	return account.Check(job.Owner, l.has()[job.Owner], account.Use{Rendezvous: more}, l.cfg.PerUser)
}

// accounts is what status says of them.
func (l *Leader) accounts() (list []control.AccountStatus) {
	all, may := l.has(), l.cfg.PerUser
	for _, user := range slices.Sorted(maps.Keys(all)) {
		u := all[user]
		list = append(list, control.AccountStatus{User: user, Jobs: u.Jobs, MostJobs: may.Jobs, Ranks: u.Ranks, MostRanks: may.Ranks, Rendezvous: u.Rendezvous, MostRendezvous: int(may.Rendezvous)})
	}
	return list
}
