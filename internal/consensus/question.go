package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/franchise"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// A question travels as an append of term 0, of a leader of the past: no voter acts on it, and the fields that Raft does not read there carry the rest.
type question struct {
	Invite *invite `cbor:"1,keyasint,omitempty"`
}

// An invite takes in a voter that has forgotten what it promised: since it started, a majority without it has committed that it is no voter.
type invite struct {
	Life    uint64 `cbor:"1,keyasint"` // the start of that voter that is meant
	Term    uint64 `cbor:"2,keyasint"` // of the leader: in it and in those before that voter may have voted
	Index   uint64 `cbor:"3,keyasint"` // of the entry that says so
	Returns bool   `cbor:"4,keyasint"` // it was a voter, and is to be one again by itself
}

// reply is how a voter answers a question.
type reply struct {
	Life    uint64             `cbor:"1,keyasint"` // a number of this start
	Log     franchise.Mark     `cbor:"2,keyasint"`
	OfYou   franchise.Mark     `cbor:"3,keyasint"`
	Members []replica.NodeName `cbor:"4,keyasint"`
	Votes   bool               `cbor:"5,keyasint"`
	Needs   bool               `cbor:"6,keyasint"` // it has forgotten what it promised, and waits to be invited
	Learns  bool               `cbor:"7,keyasint"` // it was invited, and takes the log in
	Returns bool               `cbor:"8,keyasint"` // as its last invite said
}

// answered is what an asker got.
type answered struct {
	reply
	term, last uint64 // as Raft itself says
}

// ask asks one voter; inv may be nil.
func (a *asker) ask(v Voter, inv *invite) (got answered, err error) {
	body, err := wire.Append(nil, wire.KindBallot, question{inv})
	if err != nil {
		return got, err
	}
	//nolint:staticcheck // Leader is deprecated for what raft did with it, and still goes over the wire: it carries the question
	q := raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(a.n.cfg.ID), Addr: a.trans.EncodePeer(raft.ServerID(a.n.cfg.ID), a.trans.LocalAddr())}, Leader: body}
	var r raft.AppendEntriesResponse
	if err := a.trans.AppendEntries(raft.ServerID(v.Name), target(v.Name, v.Addr), &q, &r); err != nil {
		return got, err
	}
	got.term, got.last = r.Term, r.LastLog
	if err := wire.Decode(r.Addr, wire.KindBallot, &got.reply); err != nil {
		return got, fmt.Errorf("its answer: %w", err)
	}
	return got, nil
}

// questioned answers a question: through raft, where it runs on a log, so that a voter whose log hangs does not answer.
func (b *ballot) questioned(rpc raft.RPC, q *raft.AppendEntriesRequest) {
	var asks question
	if err := wire.Decode(q.Leader, wire.KindBallot, &asks); err != nil { //nolint:staticcheck // see ask
		rpc.Respond(nil, fmt.Errorf("a question that can't be read: %w", err))
		return
	}
	if asks.Invite != nil {
		if err := b.n.invited(*asks.Invite); err != nil {
			rpc.Respond(nil, err)
			return
		}
	}
	if b.n.store.marked().Term == 0 { // raft would take the asking one for its leader
		b.respond(rpc, q, &raft.AppendEntriesResponse{})
		return
	}
	inner := make(chan raft.RPCResponse, 1)
	select {
	case b.out <- raft.RPC{Command: q, RespChan: inner}:
	case <-b.done:
		rpc.Respond(nil, ErrClosed)
		return
	}
	b.tasks.Go(func() {
		select {
		case r := <-inner:
			resp, ok := r.Response.(*raft.AppendEntriesResponse)
			if r.Error != nil || !ok {
				rpc.Respond(r.Response, errors.Join(r.Error))
				return
			}
			b.respond(rpc, q, resp)
		case <-b.done:
			rpc.Respond(nil, ErrClosed)
		}
	})
}

func (b *ballot) respond(rpc raft.RPC, q *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) {
	of := replica.NodeName(q.ID)
	b.mu.Lock()
	r := reply{Life: b.n.life, Log: b.n.store.marked(), OfYou: b.seen[of], Votes: b.phase == votes, Needs: b.phase == needs, Learns: b.phase == learns, Returns: b.bound.Returns}
	b.mu.Unlock()
	r.Members = b.n.members()
	body, err := wire.Append(nil, wire.KindBallot, r)
	resp.RPCHeader = b.header()
	resp.Addr = body
	rpc.Respond(resp, err)
}
