package node

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// caller is a process at the rendezvous, as its hello named it. It needs no claim: processes meet before they have one.
type caller struct {
	job   replica.JobID
	rank  replica.Rank
	nonce uint64
}

// kvPending is a rendezvous request of a local rank: what waits for an answer, and of a contribution also what was answered,
// so that the next leader can be told.
type kvPending struct {
	id     uint64        // between this node and its leader
	peer   *session.Peer // nil: nobody waits for the answer any more
	head   wire.RankHeader
	by     caller
	op     control.KVOp
	key    string
	value  []byte
	expect []byte
	delta  int64
	count  int
	once   uint32
	early  bool // no view since the daemon's start has told of its job: the leader was not asked yet
	again  bool // the leader could not answer yet: it is asked again with the next tick

	// Once it was answered.
	seq    uint64
	total  int64
	passed bool // a barrier that let its rank through
}

func newKV(by caller, ev session.KV) *kvPending {
	k := &kvPending{peer: ev.Peer, head: ev.Header, by: by, key: ev.Key, value: ev.Value, count: int(ev.Members), once: ev.Once,
		op: map[uint16]control.KVOp{wire.MKVSet: control.KVSet, wire.MKVGet: control.KVGet, wire.MBarrier: control.KVBarrier, wire.MKVAdd: control.KVAdd, wire.MKVCheck: control.KVCheck, wire.MKVCompareSet: control.KVCompareSet, wire.MKVDelete: control.KVDelete}[ev.Op]}
	switch k.op {
	case control.KVAdd:
		k.delta, k.value = int64(binary.LittleEndian.Uint64(ev.Value)), nil
	case control.KVCompareSet:
		k.expect, k.value, k.count = ev.Value[:ev.Members], ev.Value[ev.Members:], 0
	}
	return k
}

// contributes tells whether a next leader must hear of the request though it was answered.
func (k *kvPending) contributes() bool {
	return k.op != control.KVGet && k.op != control.KVCheck && k.op != control.KVScope
}

// same tells whether o is k again: its process gave up waiting for the answer, and now waits for it anew.
func (k *kvPending) same(o *kvPending) bool {
	return k.op == o.op && k.head.Epoch == o.head.Epoch && k.key == o.key && k.count == o.count && k.once == o.once
}

func (k *kvPending) request() control.KVRequest {
	return control.KVRequest{ID: k.id, Op: k.op, Job: k.by.job, Epoch: k.head.Epoch, Key: k.key, Value: k.value, Expect: k.expect, Delta: k.delta, Members: k.count, Rank: k.by.rank, Nonce: k.by.nonce, Once: k.once}
}

func (k *kvPending) entry() control.KVEntry {
	return control.KVEntry{Op: k.op, Key: k.key, Value: k.value, Delta: k.delta, Members: k.count, Rank: k.by.rank, Nonce: k.by.nonce, Once: k.once, Seq: k.seq, Total: k.total}
}

// kv takes a rank's question to the leader.
func (m *member) kv(ev session.KV) {
	m.meet(ev.Peer, ev.Header, func(by caller) *kvPending { return newKV(by, ev) })
}

// scope answers which epoch is to come, once that is known.
func (m *member) scope(ev session.Scope) {
	m.meet(ev.Peer, ev.Header, func(by caller) *kvPending {
		return &kvPending{peer: ev.Peer, head: ev.Header, by: by, op: control.KVScope}
	})
}

func (m *member) meet(p *session.Peer, h wire.RankHeader, ask func(caller) *kvPending) {
	by, ok := m.callers[p.ID()]
	if !ok {
		p.Refuse(h.Request, wire.CodeState, "rendezvous before the daemon has welcomed this process as a rank")
		return
	}
	k := ask(by)
	if old := m.askedBefore(k); old != nil {
		old.peer, old.head = k.peer, k.head
		m.asking[by] = old.id
		return
	}
	k.id = m.nextRequest()
	m.asking[by] = k.id
	m.place(k)
}

// askedBefore finds the pending question that k repeats. A process waits for one answer at a time: the question that it gave
// up is forgotten, unless it contributes; one of those may be taken up again later.
func (m *member) askedBefore(k *kvPending) *kvPending {
	if old := m.kvs[m.asking[k.by]]; old != nil {
		switch {
		case old.same(k):
			return old
		case old.contributes():
			old.peer = nil
		default:
			delete(m.kvs, old.id)
		}
	}
	if a := m.account(k); a != nil && k.contributes() {
		for _, old := range a.entries[k.accountKey()] {
			if m.kvs[old.id] == old && old.by == k.by && old.same(k) {
				return old
			}
		}
	}
	return nil
}

// place sends a request to the leader, if its job is known and its epoch not closed.
func (m *member) place(k *kvPending) {
	lj := m.jobs[k.by.job]
	if k.early = lj == nil; k.early {
		m.kvs[k.id] = k // the next view tells
		return
	}
	delete(m.kvs, k.id)
	closed, ended := max(lj.fenced, lj.job.ClosedEpoch), lj.job.Phase == replica.Ended
	switch {
	case k.op == control.KVScope && ended:
		k.refuse(wire.CodeStopped, "the job has ended: "+lj.job.EndReason)
	case k.op == control.KVScope:
		k.answer(control.KVReply{Seq: uint64(closed) + 1}, wire.CodeOK)
	case ended || k.head.Epoch <= closed:
		k.answer(control.KVReply{}, wire.CodeFenced)
	case k.contributes() && !m.keepKV(k):
		k.refuse(wire.CodeRefused, fmt.Sprintf("rank %d has contributed %d entries or %d KiB to the rendezvous of epoch %d, which is all that is kept for a rank: delete keys that are not needed, and pass large data another way", k.by.rank, maxKept, maxKeptBytes>>10, k.head.Epoch))
	default:
		m.kvs[k.id] = k
		m.send(k.request())
	}
}

// eachKV calls fn for every pending request, in the order in which they came.
func (m *member) eachKV(fn func(*kvPending)) {
	for _, id := range slices.Sorted(maps.Keys(m.kvs)) {
		fn(m.kvs[id])
	}
}

// placeWaiting places what waited for its job to be known.
func (m *member) placeWaiting() {
	m.eachKV(func(k *kvPending) {
		if k.early {
			m.place(k)
		}
	})
}

func (k *kvPending) refuse(code int32, why string) {
	if k.peer != nil {
		k.peer.Refuse(k.head.Request, code, why)
	}
}

func (k *kvPending) answer(r control.KVReply, code int32) {
	if k.peer == nil {
		return
	}
	h := wire.RankHeader{Type: wire.MKVOK, Request: k.head.Request, Epoch: k.head.Epoch, Incarnation: k.head.Incarnation}
	var body []byte
	switch k.op {
	case control.KVGet, control.KVCompareSet:
		h.Type, body = wire.MKVValue, wire.KVValue{Code: code, Value: r.Value}.Append(nil)
	case control.KVAdd, control.KVDelete:
		h.Type, body = wire.MKVTotal, wire.KVTotal{Code: code, Total: r.Total}.Append(nil)
	case control.KVScope:
		h.Type, body = wire.MScoped, wire.Scoped{Epoch: replica.Epoch(r.Seq)}.Append(nil)
	default:
		if r.Missing {
			code = wire.CodeAgain
		}
		body = wire.AppendKVOK(nil, code)
	}
	k.peer.Send(h, body) //nolint:errcheck // a dead peer is Gone
}

func (m *member) kvReplied(r control.KVReply) {
	k := m.kvs[r.ID]
	if k == nil {
		return
	}
	if k.again = r.Again; k.again {
		return
	}
	if k.contributes() && m.settleKV(k, r) && !m.record(k) {
		m.hold(k, r)
		return
	}
	m.endKV(k, r)
}

// endKV gives a rank its answer.
func (m *member) endKV(k *kvPending, r control.KVReply) {
	delete(m.kvs, k.id)
	if m.asking[k.by] == k.id {
		delete(m.asking, k.by)
	}
	switch {
	case r.Fenced:
		k.answer(control.KVReply{}, wire.CodeFenced)
	case r.Refused != "":
		k.refuse(wire.CodeRefused, r.Refused)
	default:
		k.answer(r, wire.CodeOK)
	}
}

// kvAgain asks again what the leader could not answer.
func (m *member) kvAgain() {
	m.eachKV(func(k *kvPending) {
		if k.again {
			k.again = false
			m.send(k.request())
		}
	})
}

// resendKV brings a new leader what local ranks contributed, and then what they wait for.
func (m *member) resendKV() {
	m.bringKept()
	m.eachKV(func(k *kvPending) {
		if !k.early {
			k.again = false
			m.send(k.request())
		}
	})
}

// kvGone forgets what a peer waits for. What it contributed stays: the leader counts it too.
func (m *member) kvGone(p *session.Peer) {
	by := m.callers[p.ID()]
	if k := m.kvs[m.asking[by]]; k == nil || k.peer == p { // else it asks on another session by now
		delete(m.asking, by)
	}
	delete(m.callers, p.ID())
	for id, k := range m.kvs {
		if k.peer != p {
			continue
		}
		k.peer = nil
		if !k.contributes() || k.early {
			delete(m.kvs, id)
		}
	}
}

// fenceKV answers every request of an epoch that is closed now, and forgets what was contributed to it.
func (m *member) fenceKV(job replica.JobID, closed replica.Epoch) {
	for id, k := range m.kvs {
		if k.by.job == job && k.head.Epoch <= closed && !k.early { // an early one is placed when all is known
			delete(m.kvs, id)
			k.answer(control.KVReply{}, wire.CodeFenced)
		}
	}
	m.dropKept(func(s kvScopeKey) bool { return s.job == job && s.epoch <= closed })
}
