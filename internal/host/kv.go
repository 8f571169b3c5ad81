package host

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
	id     uint64       // between this node and its leader
	peer   session.Peer // nil: nobody waits for the answer any more
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
func (h *Host) kv(ev session.KV) {
	h.meet(ev.Peer, ev.Header, func(by caller) *kvPending { return newKV(by, ev) })
}

// scope answers which epoch is to come, once that is known.
func (h *Host) scope(ev session.Scope) {
	h.meet(ev.Peer, ev.Header, func(by caller) *kvPending {
		return &kvPending{peer: ev.Peer, head: ev.Header, by: by, op: control.KVScope}
	})
}

func (h *Host) meet(p session.Peer, head wire.RankHeader, ask func(caller) *kvPending) {
	by, ok := h.callers[p.ID()]
	if !ok {
		p.Refuse(head.Request, wire.CodeState, "rendezvous before the daemon has welcomed this process as a rank")
		return
	}
	k := ask(by)
	if old := h.askedBefore(k); old != nil {
		old.peer, old.head = k.peer, k.head
		h.asking[by] = old.id
		return
	}
	k.id = h.nextRequest()
	h.asking[by] = k.id
	h.place(k)
}

// askedBefore finds the pending question that k repeats. A process waits for one answer at a time: the question that it gave
// up is forgotten, unless it contributes; one of those may be taken up again later.
func (h *Host) askedBefore(k *kvPending) *kvPending {
	if old := h.kvs[h.asking[k.by]]; old != nil {
		switch {
		case old.same(k):
			return old
		case old.contributes():
			old.peer = nil
		default:
			delete(h.kvs, old.id)
		}
	}
	if a := h.account(k); a != nil && k.contributes() {
		for _, old := range a.entries[k.accountKey()] {
			if h.kvs[old.id] == old && old.by == k.by && old.same(k) {
				return old
			}
		}
	}
	return nil
}

// place sends a request to the leader, if its job is known and its epoch not closed.
func (h *Host) place(k *kvPending) {
	lj := h.jobs[k.by.job]
	if k.early = lj == nil; k.early {
		h.kvs[k.id] = k // the next view tells
		return
	}
	delete(h.kvs, k.id)
	closed, ended := max(lj.fenced, lj.job.ClosedEpoch), lj.job.Phase == replica.Ended
	switch {
	case k.op == control.KVScope && ended:
		k.refuse(wire.CodeStopped, "the job has ended: "+lj.job.EndReason)
	case k.op == control.KVScope:
		k.answer(control.KVReply{Seq: uint64(closed) + 1}, wire.CodeOK)
	case ended || k.head.Epoch <= closed:
		k.answer(control.KVReply{}, wire.CodeFenced)
	case k.contributes() && !h.keepKV(k):
		k.refuse(wire.CodeRefused, fmt.Sprintf("rank %d has contributed %d entries or %d KiB to the rendezvous of epoch %d, which is all that is kept for a rank: delete keys that are not needed, and pass large data another way", k.by.rank, maxKept, maxKeptBytes>>10, k.head.Epoch))
	default:
		h.kvs[k.id] = k
		h.send(k.request())
	}
}

// eachKV calls fn for every pending request, in the order in which they came.
func (h *Host) eachKV(fn func(*kvPending)) {
	for _, id := range slices.Sorted(maps.Keys(h.kvs)) {
		fn(h.kvs[id])
	}
}

// placeWaiting places what waited for its job to be known.
func (h *Host) placeWaiting() {
	h.eachKV(func(k *kvPending) {
		if k.early {
			h.place(k)
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

func (h *Host) kvReplied(r control.KVReply) {
	k := h.kvs[r.ID]
	if k == nil {
		return
	}
	if k.again = r.Again; k.again {
		return
	}
	if k.contributes() && h.settleKV(k, r) && !h.record(k) {
		h.hold(k, r)
		return
	}
	h.endKV(k, r)
}

// endKV gives a rank its answer.
func (h *Host) endKV(k *kvPending, r control.KVReply) {
	delete(h.kvs, k.id)
	if h.asking[k.by] == k.id {
		delete(h.asking, k.by)
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
func (h *Host) kvAgain() {
	h.eachKV(func(k *kvPending) {
		if k.again {
			k.again = false
			h.send(k.request())
		}
	})
}

// resendKV brings a new leader what local ranks contributed, and then what they wait for.
func (h *Host) resendKV() {
	h.bringKept()
	h.eachKV(func(k *kvPending) {
		if !k.early {
			k.again = false
			h.send(k.request())
		}
	})
}

// kvGone forgets what a peer waits for. What it contributed stays: the leader counts it too.
func (h *Host) kvGone(p session.Peer) {
	by := h.callers[p.ID()]
	if k := h.kvs[h.asking[by]]; k == nil || k.peer == p { // else it asks on another session by now
		delete(h.asking, by)
	}
	delete(h.callers, p.ID())
	for id, k := range h.kvs {
		if k.peer != p {
			continue
		}
		k.peer = nil
		if !k.contributes() || k.early {
			delete(h.kvs, id)
		}
	}
}

// fenceKV answers every request of an epoch that is closed now, and forgets what was contributed to it.
func (h *Host) fenceKV(job replica.JobID, closed replica.Epoch) {
	for id, k := range h.kvs {
		if k.by.job == job && k.head.Epoch <= closed && !k.early { // an early one is placed when all is known
			delete(h.kvs, id)
			k.answer(control.KVReply{}, wire.CodeFenced)
		}
	}
	h.dropKept(func(s kvScopeKey) bool { return s.job == job && s.epoch <= closed })
}
