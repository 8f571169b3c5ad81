package desk

import (
	"slices"

	"github.com/replicad/replicad/internal/control"
)

const (
	maxKept      = 16 << 10 // contributions of a rank to an epoch
	maxKeptBytes = 4 << 20
	keptOverhead = 64 // bytes that a contribution counts for beside key and value
)

// account is one rank's part of a ledger, answered or not. Two contributions to one key are both there until a later Set or
// Delete of the rank makes the earlier void.
type account struct {
	entries map[accountKey][]*request
	n       int
	bytes   int
}

type accountKey struct {
	barrier bool
	key     string
}

func (r *request) accountKey() accountKey { return accountKey{r.op == control.KVBarrier, r.key} }

func (r *request) size() int { return keptOverhead + len(r.key) + len(r.value) + len(r.expect) }

// at lists the contributions to one key; a nil account has none.
func (a *account) at(key accountKey) []*request {
	if a == nil {
		return nil
	}
	return a.entries[key]
}

// enter takes a contribution in; false if the rank has no room left.
func (a *account) enter(r *request) bool {
	if a.n >= maxKept || a.bytes+r.size() > maxKeptBytes {
		return false
	}
	a.entries[r.accountKey()] = append(a.entries[r.accountKey()], r)
	a.n, a.bytes = a.n+1, a.bytes+r.size()
	return true
}

// settle enters what became of a contribution: what changed nothing goes, and what it replaced goes. It tells whether r stays.
func (a *account) settle(r *request, reply control.KVReply) bool {
	r.seq, r.total, r.passed = reply.Seq, reply.Total, r.op == control.KVBarrier
	void := reply.Fenced || reply.Refused != "" || r.seq == 0 && r.op != control.KVBarrier
	replaces := !void && r.op != control.KVAdd && r.op != control.KVBarrier
	key := r.accountKey()
	left := slices.DeleteFunc(a.entries[key], func(o *request) bool {
		gone := o == r && void
		if o != r && !void { // the same call answered twice is one, too
			gone = replaces && o.seq != 0 && o.seq < r.seq || r.seq != 0 && o.seq == r.seq || r.passed && o.passed
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
		a.bytes -= len(r.expect) // it was, and the write is a Set from now on
		r.expect = nil
	}
	return !void
}

// settled lists what some leader answered, and what a next one must hear of.
func (a *account) settled() (list []*request) {
	for _, entries := range a.entries {
		for _, r := range entries {
			if r.seq != 0 || r.passed {
				list = append(list, r)
			}
		}
	}
	return list
}
