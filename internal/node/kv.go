package node

import (
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// kvPending is a rendezvous request of a local rank that the leader has not answered; it is sent again to the next one.
type kvPending struct {
	peer  *session.Peer
	head  wire.RankHeader
	op    kvOp
	job   replica.JobID
	rank  replica.Rank
	key   string
	value []byte
	count int
}

func (k *kvPending) request(id uint64) kvRequest {
	return kvRequest{ID: id, Op: k.op, Job: k.job, Epoch: k.head.Epoch, Key: k.key, Value: k.value, Members: k.count, Rank: k.rank}
}

func (m *member) kv(ev session.KV) {
	lj, lr := m.rankOf(ev.Peer)
	if lr == nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeState, "rendezvous before attach")
		return
	}
	op := map[uint16]kvOp{wire.MKVSet: kvSet, wire.MKVGet: kvGet, wire.MBarrier: kvBarrier}[ev.Op]
	k := &kvPending{peer: ev.Peer, head: ev.Header, op: op, job: lj.job.ID, rank: lr.rank, key: ev.Key, value: ev.Value, count: int(ev.Members)}
	if ev.Header.Epoch <= lj.fenced {
		k.answer(wire.CodeFenced, nil)
		return
	}
	id := m.nextRequest()
	m.kvs[id] = k
	m.send(kindKV, k.request(id))
}

func (k *kvPending) answer(code int32, value []byte) {
	h := wire.RankHeader{Type: wire.MKVOK, Request: k.head.Request, Epoch: k.head.Epoch, Incarnation: k.head.Incarnation}
	body := wire.AppendKVOK(nil, code)
	if k.op == kvGet {
		h.Type = wire.MKVValue
		body = wire.KVValue{Code: code, Value: value}.Append(nil)
	}
	k.peer.Send(h, body) //nolint:errcheck // a dead peer is Gone
}

func (m *member) kvReplied(r kvReply) {
	k := m.kvs[r.ID]
	if k == nil {
		return
	}
	delete(m.kvs, r.ID)
	switch {
	case r.Fenced:
		k.answer(wire.CodeFenced, nil)
	case r.Refused != "":
		k.peer.Refuse(k.head.Request, wire.CodeRefused, r.Refused)
	default:
		k.answer(wire.CodeOK, r.Value)
	}
}

// fenceKV answers every request of an epoch that is closed now.
func (m *member) fenceKV(job replica.JobID, closed replica.Epoch) {
	for id, k := range m.kvs {
		if k.job == job && k.head.Epoch <= closed {
			delete(m.kvs, id)
			k.answer(wire.CodeFenced, nil)
		}
	}
}
