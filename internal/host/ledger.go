package host

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

const (
	maxKept      = 16 << 10 // contributions of a rank to an epoch
	maxKeptBytes = 4 << 20
	keptOverhead = 64 // bytes that a contribution counts for beside key and value
	keptFrame    = 1 << 20
	keptEntries  = 4096 // and the most of them in a frame
)

// ledger is what the processes of this node contributed to an epoch's rendezvous: the daemon brings it to each new leader, and
// drops it when the epoch closes.
type ledger struct {
	accounts map[replica.Rank]*account
	file     *ledgerFile // what the leader answered, for the daemon that comes after this one; nil: nothing yet, or there was no memory for it
}

type kvScopeKey struct {
	job   replica.JobID
	epoch replica.Epoch
}

// account is one rank's part of a ledger, answered or not. Two contributions to one key are both there until a later Set or
// Delete of the rank makes the earlier void.
type account struct {
	entries map[accountKey][]*kvPending
	n       int
	bytes   int
}

type accountKey struct {
	barrier bool
	key     string
}

func (k *kvPending) scope() kvScopeKey { return kvScopeKey{k.by.job, k.head.Epoch} }

func (k *kvPending) accountKey() accountKey { return accountKey{k.op == control.KVBarrier, k.key} }

func (k *kvPending) size() int { return keptOverhead + len(k.key) + len(k.value) + len(k.expect) }

// account is that of the rank that k is of; nil: it contributed nothing yet to that epoch.
func (h *Host) account(k *kvPending) *account {
	if l := h.kept[k.scope()]; l != nil {
		return l.accounts[k.by.rank]
	}
	return nil
}

// keepKV enters a contribution before the leader is asked; false if the rank has no room left.
func (h *Host) keepKV(k *kvPending) bool {
	a := h.account(k)
	if a == nil {
		a = &account{entries: map[accountKey][]*kvPending{}}
	}
	if a.n >= maxKept || a.bytes+k.size() > maxKeptBytes {
		return false
	}
	if h.kept[k.scope()] == nil {
		h.kept[k.scope()] = &ledger{accounts: map[replica.Rank]*account{}}
	}
	h.kept[k.scope()].accounts[k.by.rank] = a
	a.entries[k.accountKey()] = append(a.entries[k.accountKey()], k)
	a.n, a.bytes = a.n+1, a.bytes+k.size()
	return true
}

// settleKV enters what became of a contribution: what changed nothing goes, and what it replaced goes. It tells whether k stays.
func (h *Host) settleKV(k *kvPending, r control.KVReply) bool {
	a := h.account(k)
	if a == nil {
		return false
	}
	k.seq, k.total, k.passed = r.Seq, r.Total, k.op == control.KVBarrier
	void := r.Fenced || r.Refused != "" || k.seq == 0 && k.op != control.KVBarrier
	replaces := !void && k.op != control.KVAdd && k.op != control.KVBarrier
	key := k.accountKey()
	left := slices.DeleteFunc(a.entries[key], func(o *kvPending) bool {
		gone := o == k && void
		if o != k && !void { // the same call answered twice is one, too
			gone = replaces && o.seq != 0 && o.seq < k.seq || k.seq != 0 && o.seq == k.seq || k.passed && o.passed
		}
		if gone {
			a.n, a.bytes = a.n-1, a.bytes-o.size()
		}
		return gone
	})
	if a.entries[key] = left; len(left) == 0 {
		delete(a.entries, key)
	}
	if !void {
		a.bytes -= len(k.expect) // it was, and the write is a Set from now on
		k.expect = nil
	}
	return !void
}

// settled lists what some leader answered, and what a next one must hear of.
func (l *ledger) settled() (all []*kvPending) {
	for _, a := range l.accounts {
		for _, entries := range a.entries {
			for _, k := range entries {
				if k.seq != 0 || k.passed {
					all = append(all, k)
				}
			}
		}
	}
	return all
}

// bringKept tells a new leader all contributions that an earlier one answered, in frames of bounded size.
func (h *Host) bringKept() {
	for key, l := range h.kept {
		all := l.settled()
		slices.SortFunc(all, func(a, b *kvPending) int {
			return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.key, b.key), cmp.Compare(a.by.rank, b.by.rank))
		})
		for len(all) > 0 {
			frame, n, bytes := control.KVKept{Job: key.job, Epoch: key.epoch}, 0, 0
			for n < len(all) && n < keptEntries && bytes < keptFrame {
				frame.Entries = append(frame.Entries, all[n].entry())
				bytes += all[n].size()
				n++
			}
			h.send(frame)
			all = all[n:]
		}
	}
	h.send(control.KVKept{Done: true})
}

// dropKept drops the ledgers of the epochs that gone names, and has the keeper drop their files.
func (h *Host) dropKept(gone func(kvScopeKey) bool) {
	for key, l := range h.kept {
		if !gone(key) {
			continue
		}
		delete(h.kept, key)
		if l.file != nil {
			h.custody.Drop(key.file())
			l.file.Close() //nolint:errcheck // memory; nothing is lost
		}
	}
}

// dropUnknownKept drops what an earlier daemon kept for jobs that ended while no daemon was here to see that.
func (h *Host) dropUnknownKept() {
	h.dropKept(func(s kvScopeKey) bool { return h.jobs[s.job] == nil })
}

// record writes a settled contribution to its ledger's file. It tells whether the rank may hear the answer now: false until the
// keeper has the file, because until then a rank could go on whose contribution dies with this daemon. Without memory for the file the
// answer is given all the same: a contribution that only this daemon has is better than a job that stands still.
func (h *Host) record(k *kvPending) bool {
	key := k.scope()
	l := h.kept[key]
	if l.file == nil {
		f, err := newLedgerFile(key)
		if err != nil {
			h.log.Retried("rendezvous", key.file(), err.Error())
			return true
		}
		l.file = f
		h.parkLedger(key, f)
	}
	f := l.file
	if err := f.append(key, k.entry()); err != nil {
		h.log.Retried("rendezvous", key.file(), err.Error())
		return true
	}
	if f.bloated() {
		h.rewrite(key, l)
	}
	return f.parked
}

// hold has an answer wait until the keeper has the file in which its contribution is. The request stays pending: a rank that asks again
// meanwhile is given the same answer. Each process waits for one answer, so few are held.
func (h *Host) hold(k *kvPending, r control.KVReply) {
	f := h.kept[k.scope()].file
	f.held = append(f.held, r)
}

// ledgerParked says that the custodian has brought a ledger's file to the keeper, or has logged why it could not.
type ledgerParked struct {
	key  kvScopeKey
	file *ledgerFile
}

func (h *Host) parkLedger(key kvScopeKey, f *ledgerFile) {
	h.custody.Put(key.file(), f.File)
	h.custody.After(func() { h.Post(ledgerParked{key, f}) })
}

func (h *Host) ledgerParked(ev ledgerParked) {
	if l := h.kept[ev.key]; l == nil || l.file != ev.file {
		return // its epoch closed, or it was written anew
	}
	held := ev.file.held
	ev.file.parked, ev.file.held = true, nil
	for _, r := range held {
		if k := h.kvs[r.ID]; k != nil {
			h.endKV(k, r)
		}
	}
}

// ledgerRewritten is the end of writing what lives in a ledger into a fresh file.
type ledgerRewritten struct {
	key   kvScopeKey
	old   *ledgerFile
	upTo  int64 // bytes of old whose records fresh has, or replaces
	fresh *ledgerFile
	err   error
}

// rewrite writes what lives in a ledger anew, beside the host: a key that is set a million times must not fill the memory.
func (h *Host) rewrite(key kvScopeKey, l *ledger) {
	old := l.file
	old.rewriting = true
	all := l.settled()
	live := make([]control.KVEntry, len(all))
	for i, k := range all {
		live[i] = k.entry()
	}
	ev := ledgerRewritten{key: key, old: old, upTo: old.size}
	h.spawn(func(context.Context) Event {
		ev.fresh, ev.err = rewrittenLedger(key, live)
		return ev
	})
}

// ledgerRewritten puts the fresh file in the old one's place. The keeper replaces one by the other under one key, so it has all records
// at any time: those that come from now on are answered once it has the fresh one.
func (h *Host) ledgerRewritten(ev ledgerRewritten) {
	l := h.kept[ev.key]
	if l == nil || l.file != ev.old {
		if ev.fresh != nil {
			ev.fresh.Close() //nolint:errcheck // memory; nothing is lost
		}
		return
	}
	err := ev.err
	if err == nil {
		if err = ev.fresh.appendFrom(ev.old, ev.upTo); err != nil {
			ev.fresh.Close() //nolint:errcheck // memory; nothing is lost
		}
	}
	if err != nil {
		h.log.Failed("rendezvous", ev.key.file(), err.Error())
		ev.old.rewriting, ev.old.base = false, ev.old.size // until it is twice as large again
		return
	}
	ev.fresh.held = ev.old.held
	l.file = ev.fresh
	ev.old.Close() //nolint:errcheck // memory; the keeper has it until it has the fresh one
	h.parkLedger(ev.key, ev.fresh)
}

// adoptLedger takes back what an earlier daemon recorded, and goes on writing to its file.
func (h *Host) adoptLedger(name string, file *os.File) {
	f := &ledgerFile{File: file, parked: true}
	var key kvScopeKey
	err := f.replay(func(s kvScopeKey, e control.KVEntry) error {
		if s.file() != name {
			return fmt.Errorf("a record of %s", s.file())
		}
		key = s
		h.restoreKV(s, e)
		return nil
	})
	if err != nil {
		h.log.Failed("adopt", name, fmt.Sprintf("the rendezvous' records end after %d bytes: %v", f.size, err))
	}
	l := h.kept[key]
	if l != nil {
		l.file = f
		if err = f.Truncate(f.size); err == nil {
			return
		}
		l.file = nil
		h.log.Failed("adopt", name, err.Error())
	}
	file.Close()
	h.keeper.Drop(name) //nolint:errcheck // there is nothing in it
}

// restoreKV enters a contribution as an earlier daemon settled it. What has no room had none there: it was recorded twice.
func (h *Host) restoreKV(s kvScopeKey, e control.KVEntry) {
	k := &kvPending{op: e.Op, key: e.Key, value: e.Value, delta: e.Delta, count: e.Members, once: e.Once,
		by: caller{s.job, e.Rank, e.Nonce}, head: wire.RankHeader{Epoch: s.epoch}}
	if h.keepKV(k) {
		h.settleKV(k, control.KVReply{Seq: e.Seq, Total: e.Total})
	}
}
