package leader

import (
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/internal/account"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// accounts are what the users of a cluster have of it, by number.
type accounts struct {
	most    config.PerUser
	minting map[uint32]account.Use // jobs on their way into the log
}

func newAccounts(most config.PerUser) accounts {
	return accounts{most: most, minting: map[uint32]account.Use{}}
}

// of counts the jobs that have not ended, those on their way into the log among them.
func (a *accounts) of(v lock.View, kv *rendezvous.Store) map[uint32]account.Use {
	all := maps.Clone(a.minting)
	for id, job := range v.Jobs {
		if job.Phase != replica.Ended {
			all[job.Owner] = all[job.Owner].Plus(account.Use{Jobs: 1, Ranks: int(job.Layout.World), Rendezvous: kv.Bytes(id)})
		}
	}
	return all
}

// world is what a job of so many ranks is charged.
func world(ranks uint32) account.Use { return account.Use{Jobs: 1, Ranks: int(ranks)} }

// mayCreate refuses a job that its user's account has no room for.
func (a *accounts) mayCreate(v lock.View, kv *rendezvous.Store, m control.CreateRequest) error {
	if err := account.Check(m.Owner, a.of(v, kv)[m.Owner], world(m.Layout.World), a.most); err != nil {
		return fmt.Errorf("create job %q: %w", m.Name, err)
	}
	return nil
}

// charge counts a job while it is on its way into the log; the state counts it from then on.
func (a *accounts) charge(user uint32, more account.Use) (done func()) {
	a.minting[user] = a.minting[user].Plus(more)
	return func() {
		left := a.minting[user].Plus(account.Use{Jobs: -more.Jobs, Ranks: -more.Ranks})
		if a.minting[user] = left; left == (account.Use{}) {
			delete(a.minting, user)
		}
	}
}

// mayMeet refuses what the user's account has no room for. What the job has for itself it has whatever its user's other jobs take: a recovery
// does not wait for them.
func (a *accounts) mayMeet(v lock.View, kv *rendezvous.Store, job *replica.Job, m control.KVRequest) error {
	more := rendezvous.Cost(m.Key, m.Value)
	if _, there := kv.Get(job.ID, m.Epoch, m.Key); there && m.Op == control.KVGet {
		return nil // it does not wait
	}
	if m.Op == control.KVCheck || m.Op == control.KVDelete || kv.Bytes(job.ID)+more <= account.Own(int(job.Layout.World)) {
		return nil
	}
	return account.Check(job.Owner, a.of(v, kv)[job.Owner], account.Use{Rendezvous: more}, a.most)
}

// status lists what each user has.
func (a *accounts) status(v lock.View, kv *rendezvous.Store) (list []control.AccountStatus) {
	all := a.of(v, kv)
	for _, user := range slices.Sorted(maps.Keys(all)) {
		u := all[user]
		list = append(list, control.AccountStatus{User: user, Jobs: u.Jobs, MostJobs: a.most.Jobs, Ranks: u.Ranks, MostRanks: a.most.Ranks,
			Rendezvous: u.Rendezvous, MostRendezvous: int(a.most.Rendezvous)})
	}
	return list
}
