package desk

import (
	"maps"
	"slices"
)

// pending are the requests that are not answered.
type pending struct {
	all    map[uint64]*request // by id
	newest map[Caller]uint64   // the one of them that a process waits for
}

func newPending() pending { return pending{map[uint64]*request{}, map[Caller]uint64{}} }

// add enters a request that has its id: its process waits for it from now on.
func (p *pending) add(r *request) {
	p.all[r.id] = r
	p.newest[r.by] = r.id
}

// end takes a request out: it was answered, or nobody wants the answer.
func (p *pending) end(r *request) {
	delete(p.all, r.id)
	if p.newest[r.by] == r.id {
		delete(p.newest, r.by)
	}
}

func (p *pending) has(r *request) bool { return p.all[r.id] == r }

// of is the request that a process waits for; nil: none.
func (p *pending) of(by Caller) *request { return p.all[p.newest[by]] }

// inOrder lists the requests as they came.
func (p *pending) inOrder() []*request {
	list := make([]*request, 0, len(p.all))
	for _, id := range slices.Sorted(maps.Keys(p.all)) {
		list = append(list, p.all[id])
	}
	return list
}

// leave takes out what a peer waits for, but for contributions of which the leader may have heard: for those nobody waits any more.
func (p *pending) leave(peer Peer, by Caller) {
	if r := p.of(by); r != nil && r.peer == peer { // else the process asks on another session by now
		delete(p.newest, by)
	}
	for _, r := range p.all {
		if r.peer != peer {
			continue
		}
		r.peer = nil
		if !r.contributes() || r.early {
			p.end(r)
		}
	}
}
