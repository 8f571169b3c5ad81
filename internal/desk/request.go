package desk

import (
	"encoding/binary"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// request is what a process asked: what waits for an answer, and of a contribution also what was answered, so that the next
// leader can be told.
type request struct {
	id     uint64 // between this node and its leader
	peer   Peer   // nil: nobody waits for the answer any more
	head   wire.RankHeader
	by     Caller
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

var operations = map[uint16]control.KVOp{wire.MKVSet: control.KVSet, wire.MKVGet: control.KVGet, wire.MBarrier: control.KVBarrier, wire.MKVAdd: control.KVAdd, wire.MKVCheck: control.KVCheck,
	wire.MKVCompareSet: control.KVCompareSet, wire.MKVDelete: control.KVDelete}

func newRequest(p Peer, h wire.RankHeader, by Caller, op uint16, kv wire.KV) *request {
	r := &request{peer: p, head: h, by: by, key: kv.Key, value: kv.Value, count: int(kv.Members), once: kv.Once, op: operations[op]}
	switch r.op {
	case control.KVAdd:
		r.delta, r.value = int64(binary.LittleEndian.Uint64(kv.Value)), nil
	case control.KVCompareSet:
		r.expect, r.value, r.count = kv.Value[:kv.Members], kv.Value[kv.Members:], 0
	case control.KVSet, control.KVGet, control.KVBarrier, control.KVCheck, control.KVDelete, control.KVScope: // as they came
	}
	return r
}

// contributes tells whether a next leader must hear of the request though it was answered.
func (r *request) contributes() bool {
	return r.op != control.KVGet && r.op != control.KVCheck && r.op != control.KVScope
}

// same tells whether o is r again: its process gave up waiting for the answer, and now waits for it anew.
func (r *request) same(o *request) bool {
	return r.op == o.op && r.head.Epoch == o.head.Epoch && r.key == o.key && r.count == o.count && r.once == o.once
}

func (r *request) message() control.KVRequest {
	return control.KVRequest{ID: r.id, Op: r.op, Job: r.by.Job, Epoch: r.head.Epoch, Key: r.key, Value: r.value, Expect: r.expect, Delta: r.delta, Members: r.count, Rank: r.by.Rank, Nonce: r.by.Nonce, Once: r.once}
}

func (r *request) entry() control.KVEntry {
	return control.KVEntry{Op: r.op, Key: r.key, Value: r.value, Delta: r.delta, Members: r.count, Rank: r.by.Rank, Nonce: r.by.Nonce, Once: r.once, Seq: r.seq, Total: r.total}
}

// requestOf is a contribution as an earlier daemon had it.
func requestOf(s scope, e control.KVEntry) *request {
	return &request{op: e.Op, key: e.Key, value: e.Value, delta: e.Delta, count: e.Members, once: e.Once, by: Caller{s.job, e.Rank, e.Nonce}, head: wire.RankHeader{Epoch: s.epoch}}
}

func (r *request) refuse(code int32, why string) {
	if r.peer != nil {
		r.peer.Refuse(r.head.Request, code, why)
	}
}

func (r *request) answer(reply control.KVReply, code int32) {
	if r.peer == nil {
		return
	}
	h := wire.RankHeader{Type: wire.MKVOK, Request: r.head.Request, Epoch: r.head.Epoch, Incarnation: r.head.Incarnation}
	var body []byte
	switch r.op {
	case control.KVGet, control.KVCompareSet:
		h.Type, body = wire.MKVValue, wire.KVValue{Code: code, Value: reply.Value}.Append(nil)
	case control.KVAdd, control.KVDelete:
		h.Type, body = wire.MKVTotal, wire.KVTotal{Code: code, Total: reply.Total}.Append(nil)
	case control.KVScope:
		h.Type, body = wire.MScoped, wire.Scoped{Epoch: replica.Epoch(reply.Seq)}.Append(nil)
	default:
		if reply.Missing {
			code = wire.CodeAgain
		}
		body = wire.AppendKVOK(nil, code)
	}
	r.peer.Send(h, body) //nolint:errcheck // a dead peer leaves
}
