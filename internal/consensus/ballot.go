package consensus

import (
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/franchise"
	"github.com/replicad/replicad/replica"
)

// phase is what a voter may do by now.
type phase uint8

const (
	asks   phase = iota // neither vote nor acknowledge an entry: it is not known yet whether its log is all that it promised
	needs               // the same, since it is not: a leader has to invite it
	learns              // take entries of leaders from the invite's term on
	votes               // all, in terms later than the floor
)

// A ballot stands between raft and its transport. raft without a configuration grants its vote to anybody, and one with an old log acknowledges and votes
// as if it had never promised more: what comes in is answered here instead, and what raft would ask for goes nowhere.
//
// It also notes how far others are seen to go.
type ballot struct {
	*raft.NetworkTransport
	n     *Node
	out   chan raft.RPC
	done  chan struct{}
	tasks sync.WaitGroup

	mu    sync.Mutex // guards the rest
	phase phase
	floor uint64         // the newest term in which this voter must not vote any more
	bound bound          // of the last invite
	least franchise.Mark // no candidate whose log ends before this one,
	until time.Time      // until then
	seen  map[replica.NodeName]franchise.Mark
	wants map[replica.NodeName]bool // voters that took no entries since they have to be invited
	write uint64                    // counts what was written to the memory
}

// refusedEntries is how the leader knows a voter that has to be invited.
const refusedEntries = "this voter takes no entries yet"

var errNotInvited = errors.New(refusedEntries + ": it is not known whether its log is all that it promised, or a leader has to take it in")

func newBallot(n *Node, t *raft.NetworkTransport) *ballot {
	b := &ballot{NetworkTransport: t, n: n, out: make(chan raft.RPC), done: make(chan struct{}), seen: map[replica.NodeName]franchise.Mark{}, wants: map[replica.NodeName]bool{}}
	b.tasks.Go(b.filter)
	return b
}

// stop ends it, after raft.
func (b *ballot) stop() {
	close(b.done)
	b.tasks.Wait()
}

// Consumer implements raft.Transport.
func (b *ballot) Consumer() <-chan raft.RPC { return b.out }

// SetHeartbeatHandler implements raft.Transport.
func (b *ballot) SetHeartbeatHandler(fn func(raft.RPC)) {
	b.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if !b.refuses(rpc) {
			fn(rpc)
		}
	})
}

// filter runs until the node ends.
func (b *ballot) filter() {
	for {
		select {
		case <-b.done:
			return
		case rpc := <-b.NetworkTransport.Consumer():
			if b.refuses(rpc) {
				continue
			}
			select {
			case b.out <- rpc:
			case <-b.done:
				return
			}
		}
	}
}

// refuses answers what raft must not see; false: it is raft's.
func (b *ballot) refuses(rpc raft.RPC) bool {
	switch q := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		if q.Term == 0 {
			b.questioned(rpc, q)
			return true
		}
		if !b.takes(q.Term) {
			rpc.Respond(nil, errNotInvited)
			return true
		}
		b.sees(q.ID, appended(q))
	case *raft.InstallSnapshotRequest:
		if !b.takes(q.Term) {
			b.tasks.Go(func() {
				_, _ = io.Copy(io.Discard, rpc.Reader) // what is left of it would be taken for the next request
				rpc.Respond(nil, errNotInvited)
			})
			return true
		}
		b.sees(q.ID, franchise.Mark{Term: q.Term, LastTerm: q.LastLogTerm, Index: q.LastLogIndex})
	case *raft.RequestVoteRequest:
		b.sees(q.ID, franchise.Mark{Term: q.Term, LastTerm: q.LastLogTerm, Index: q.LastLogIndex})
		if may, term := b.mayVote(q.Term, franchise.Mark{LastTerm: q.LastLogTerm, Index: q.LastLogIndex}); !may {
			rpc.Respond(&raft.RequestVoteResponse{RPCHeader: b.header(), Term: term}, nil)
			return true
		}
	case *raft.RequestPreVoteRequest:
		if may, term := b.mayVote(q.Term, franchise.Mark{LastTerm: q.LastLogTerm, Index: q.LastLogIndex}); !may {
			rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: b.header(), Term: term}, nil)
			return true
		}
	case *raft.TimeoutNowRequest:
		if may, _ := b.mayVote(b.floorTerm()+1, b.n.store.marked()); !may {
			rpc.Respond(nil, errNotInvited)
			return true
		}
	}
	return false
}

func (b *ballot) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(b.n.cfg.ID), Addr: b.EncodePeer(raft.ServerID(b.n.cfg.ID), b.LocalAddr())}
}

// takes tells whether entries of a leader of that term are taken.
func (b *ballot) takes(term uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.phase == votes || b.phase == learns && term >= b.bound.Term
}

func (b *ballot) floorTerm() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.floor
}

// mayVote tells whether this voter may vote in a term for a candidate of such a log, another or itself. What it says of the term otherwise has a candidate that is at or below
// the floor stand beyond it.
func (b *ballot) mayVote(in uint64, log franchise.Mark) (may bool, term uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.phase != votes:
		return false, min(in, b.n.store.marked().Term)
	case in <= b.floor:
		return false, b.floor + 1
	case log.EndsBefore(b.least) && b.n.store.marked().EndsBefore(b.least) && time.Now().Before(b.until):
		return false, min(in, b.n.store.marked().Term)
	}
	return true, 0
}

// RequestVote implements raft.Transport.
func (b *ballot) RequestVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	if may, term := b.mayVote(q.Term, b.n.store.marked()); !may {
		r.Term = term
		return nil
	}
	err := b.NetworkTransport.RequestVote(id, to, q, r)
	if err == nil && r.Granted {
		b.sees([]byte(id), franchise.Mark{Term: q.Term})
	}
	return err
}

// RequestPreVote implements raft.WithPreVote.
func (b *ballot) RequestPreVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	if may, term := b.mayVote(q.Term, b.n.store.marked()); !may {
		r.Term = term
		return nil
	}
	return b.NetworkTransport.RequestPreVote(id, to, q, r)
}

// AppendEntries implements raft.Transport.
func (b *ballot) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	err := b.NetworkTransport.AppendEntries(id, to, q, r)
	switch {
	case err == nil && r.Success:
		b.sees([]byte(id), appended(q))
	case err != nil && strings.Contains(err.Error(), refusedEntries):
		b.mu.Lock()
		b.wants[replica.NodeName(id)] = true
		b.mu.Unlock()
		b.n.readmit()
	}
	return err
}

// InstallSnapshot implements raft.Transport.
func (b *ballot) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	err := b.NetworkTransport.InstallSnapshot(id, to, q, r, data)
	if err == nil && r.Success {
		b.sees([]byte(id), franchise.Mark{Term: q.Term, LastTerm: q.LastLogTerm, Index: q.LastLogIndex})
	}
	return err
}

// appended is how far a log reaches that has what a leader sent.
func appended(q *raft.AppendEntriesRequest) franchise.Mark {
	m := franchise.Mark{Term: q.Term, LastTerm: q.PrevLogTerm, Index: q.PrevLogEntry}
	if n := len(q.Entries); n > 0 {
		m.LastTerm, m.Index = q.Entries[n-1].Term, q.Entries[n-1].Index
	}
	return m
}

// sees notes how far another voter was seen to go.
func (b *ballot) sees(id []byte, m franchise.Mark) {
	m.Era = b.n.store.marked().Era
	b.mu.Lock()
	defer b.mu.Unlock()
	name := replica.NodeName(id)
	if now := b.seen[name].With(m); now != b.seen[name] {
		b.seen[name] = now
		b.remember(b.n.store.marked())
	}
}

// promised is told of each change of this voter's own log, once it is on disk.
func (b *ballot) promised(m franchise.Mark) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remember(m)
}

// remember writes the memory. b.mu is held.
func (b *ballot) remember(m franchise.Mark) {
	if b.n.cfg.Memory == nil || b.phase < learns { // until then the memory says what this voter has promised, and its log does not
		return
	}
	b.write++
	if err := keep(b.n.cfg.Memory, remembered{b.write, b.n.cfg.ID, b.n.cfg.Cluster, m, b.seen}); err != nil {
		b.n.cfg.Logger.Error("what this voter has promised is not remembered by its keeper", "error", err)
	}
}
