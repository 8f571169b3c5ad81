package desk

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

const (
	keptFrame   = 1 << 20 // bytes of a frame to a new leader, about
	keptEntries = 4096    // and the most contributions in it
)

// scope is one rendezvous: that of an epoch of a job.
type scope struct {
	job   replica.JobID
	epoch replica.Epoch
}

func (s scope) compare(o scope) int {
	return cmp.Or(bytes.Compare(s.job[:], o.job[:]), cmp.Compare(s.epoch, o.epoch))
}

func (r *request) scope() scope { return scope{r.by.Job, r.head.Epoch} }

// ledgers are what processes of this node contributed to epochs that are not closed.
type ledgers map[scope]*ledger

// ledger is what they contributed to one.
type ledger struct {
	accounts map[replica.Rank]*account
	file     *file // what the leader answered, for the daemon that comes after this one; nil: nothing yet, or there was no memory for it
}

// account is a rank's; nil: it contributed nothing yet to that epoch.
func (l ledgers) account(s scope, rank replica.Rank) *account {
	if of := l[s]; of != nil {
		return of.accounts[rank]
	}
	return nil
}

// enter takes a contribution in before the leader is asked; false if the rank has no room left.
func (l ledgers) enter(r *request) bool {
	s, a := r.scope(), l.account(r.scope(), r.by.Rank)
	if a == nil {
		a = &account{entries: map[accountKey][]*request{}}
	}
	if !a.enter(r) {
		return false
	}
	if l[s] == nil {
		l[s] = &ledger{accounts: map[replica.Rank]*account{}}
	}
	l[s].accounts[r.by.Rank] = a
	return true
}

// settle enters what became of a contribution. It tells whether r stays.
func (l ledgers) settle(r *request, reply control.KVReply) bool {
	a := l.account(r.scope(), r.by.Rank)
	return a != nil && a.settle(r, reply)
}

// restore enters a contribution as an earlier daemon settled it. What has no room had none there: it was recorded twice.
func (l ledgers) restore(s scope, e control.KVEntry) {
	if r := requestOf(s, e); l.enter(r) {
		l.settle(r, control.KVReply{Seq: e.Seq, Total: e.Total})
	}
}

// scopes lists the ledgers in one order: what is done for all of them does not hang on a map's.
func (l ledgers) scopes() []scope { return slices.SortedFunc(maps.Keys(l), scope.compare) }

// settled lists what some leader answered. Those to one key are in the order in which they were entered: replayed so, they come to the same.
func (l *ledger) settled() (all []*request) {
	for _, a := range l.accounts {
		all = append(all, a.settled()...)
	}
	return all
}

// frames is all that an earlier leader answered, as a new one is told: in frames of bounded size, of which the last says that this was all.
func (l ledgers) frames() (frames []control.KVKept) {
	for _, s := range l.scopes() {
		all := l[s].settled()
		slices.SortFunc(all, func(a, b *request) int {
			return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.key, b.key), cmp.Compare(a.by.Rank, b.by.Rank))
		})
		for len(all) > 0 {
			frame, n, size := control.KVKept{Job: s.job, Epoch: s.epoch}, 0, 0
			for n < len(all) && n < keptEntries && size < keptFrame {
				frame.Entries = append(frame.Entries, all[n].entry())
				size += all[n].size()
				n++
			}
			frames, all = append(frames, frame), all[n:]
		}
	}
	return append(frames, control.KVKept{Done: true})
}
