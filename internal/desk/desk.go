package desk

import (
	"fmt"
	"os"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Desk is where the processes of a node meet those of others. It belongs to one goroutine.
type Desk struct {
	owner   Owner
	log     Log
	callers map[uint64]Caller // processes that were admitted, by peer
	pending pending
	ledgers ledgers
}

// Owner is the daemon around a desk. It calls the desk, and the desk calls it from inside those calls; no method may wait or call the
// desk in turn.
type Owner interface {
	// Send tells the leader something. Without a leader it is dropped, because Resend repeats it to the next one.
	Send(msg any)
	// May tells whether one more request of a job may go to the leader now, which then counts. It has to wait for a tick otherwise: a process
	// in a loop is no load for the leader.
	May(replica.JobID) bool
	// NextRequest is a number above all that it gave before, and never 0: a reply of the leader names its request by it.
	NextRequest() uint64
	// Job tells what is known of a job; false: no leader has told of it yet, or it is forgotten.
	Job(replica.JobID) (Job, bool)
	// Park has the keeper hold a duplicate of f, in place of what it holds under key. Once it does, or the failure is logged, the owner
	// gives done to Handle.
	Park(key string, f *os.File, done Event)
	// Unpark has the keeper drop what it holds under key.
	Unpark(key string)
	// Beside calls work on another goroutine, and gives its event to Handle.
	Beside(work func() Event)
}

// Log takes what an operator should know of.
type Log interface {
	Failed(what, subject, why string)
	// Retried is Failed for what may fail many times a second.
	Retried(what, subject, why string)
}

// Peer is the session of a process. Peers are compared with ==.
type Peer interface {
	// ID is unique in the daemon's life.
	ID() uint64
	Send(h wire.RankHeader, body []byte) error
	// Refuse answers request req with a code of package wire and a text.
	Refuse(req uint32, code int32, text string)
}

// Caller is a process, as its hello named it. It needs no claim, because processes meet before they have one.
type Caller struct {
	Job   replica.JobID
	Rank  replica.Rank
	Nonce uint64 // of the process: another process of the rank has another one
}

// Job is what a desk must know of a job.
type Job struct {
	Closed    replica.Epoch // the highest epoch that is closed
	Ended     bool
	EndReason string
}

// Event is the end of something that an owner did for its desk. It is the desk's alone to read.
type Event interface{ event() }

// New returns a desk at which nobody is.
func New(owner Owner, log Log) *Desk {
	return &Desk{owner: owner, log: log, callers: map[uint64]Caller{}, pending: newPending(), ledgers: ledgers{}}
}

// Admit has a process speak for its rank from now on.
func (d *Desk) Admit(p Peer, c Caller) { d.callers[p.ID()] = c }

// Leave ends what Admit began, and forgets what the peer waits for. What it contributed stays: the leader counts that too.
func (d *Desk) Leave(p Peer) {
	by := d.callers[p.ID()]
	delete(d.callers, p.ID())
	d.pending.leave(p, by)
}

// Ask takes a process' request to the leader; op is the type of its message, wire.MKVSet and so on.
func (d *Desk) Ask(p Peer, h wire.RankHeader, op uint16, kv wire.KV) {
	d.meet(p, h, func(by Caller) *request { return newRequest(p, h, by, op, kv) })
}

// AskScope answers which epoch is to come, once the job is known.
func (d *Desk) AskScope(p Peer, h wire.RankHeader) {
	d.meet(p, h, func(by Caller) *request { return &request{peer: p, head: h, by: by, op: control.KVScope} })
}

func (d *Desk) meet(p Peer, h wire.RankHeader, ask func(Caller) *request) {
	by, ok := d.callers[p.ID()]
	if !ok {
		p.Refuse(h.Request, wire.CodeState, "rendezvous before the daemon has welcomed this process as a rank")
		return
	}
	r := ask(by)
	if old := d.askedBefore(r); old != nil {
		old.peer, old.head = r.peer, r.head
		d.pending.newest[by] = old.id
		return
	}
	r.id = d.owner.NextRequest()
	d.pending.add(r)
	d.place(r)
}

// askedBefore finds the pending request that r repeats. A process waits for one answer at a time: the request that it gave
// up is forgotten, unless it contributes; one of those may be taken up again later.
func (d *Desk) askedBefore(r *request) *request {
	if old := d.pending.of(r.by); old != nil {
		switch {
		case old.same(r):
			return old
		case old.contributes():
			old.peer = nil
		default:
			d.pending.end(old)
		}
	}
	if r.contributes() {
		for _, old := range d.ledgers.account(r.scope(), r.by.Rank).at(r.accountKey()) {
			if d.pending.has(old) && old.by == r.by && old.same(r) {
				return old
			}
		}
	}
	return nil
}

// place sends a pending request to the leader, if its job is known and its epoch not closed; else it is answered, or waits for its job.
func (d *Desk) place(r *request) {
	job, known := d.owner.Job(r.by.Job)
	if r.early = !known; r.early {
		return
	}
	switch {
	case r.op == control.KVScope && job.Ended:
		d.pending.end(r)
		r.refuse(wire.CodeStopped, "the job has ended: "+job.EndReason)
	case r.op == control.KVScope:
		d.pending.end(r)
		r.answer(control.KVReply{Seq: uint64(job.Closed) + 1}, wire.CodeOK)
	case job.Ended || r.head.Epoch <= job.Closed:
		d.pending.end(r)
		r.answer(control.KVReply{}, wire.CodeFenced)
	case r.head.Epoch > job.Closed+2: // of the next one a process may hear before its daemon does
		d.pending.end(r)
		r.refuse(wire.CodeRefused, fmt.Sprintf("rank %d asks at the rendezvous of epoch %d, and epoch %d comes next: ask for the epoch that rp_kv_scope names", r.by.Rank, r.head.Epoch, job.Closed+1))
	case r.contributes() && !d.ledgers.enter(r):
		d.pending.end(r)
		r.refuse(wire.CodeRefused, fmt.Sprintf("rank %d has contributed %d entries or %d KiB to the rendezvous of epoch %d, the limit for a rank: delete keys that are not needed, and pass large data another way", r.by.Rank, maxKept, maxKeptBytes>>10, r.head.Epoch))
	default:
		d.send(r)
	}
}

// send asks the leader, now or with the next tick.
func (d *Desk) send(r *request) {
	if r.again = !d.owner.May(r.by.Job); !r.again {
		d.owner.Send(r.message())
	}
}

// Reply takes the leader's answer to a request.
func (d *Desk) Reply(reply control.KVReply) {
	r := d.pending.all[reply.ID]
	if r == nil {
		return
	}
	if r.again = reply.Again; r.again {
		return
	}
	if r.contributes() && d.ledgers.settle(r, reply) && !d.record(r) {
		d.hold(r, reply)
		return
	}
	d.end(r, reply)
}

// end gives a process its answer.
func (d *Desk) end(r *request, reply control.KVReply) {
	d.pending.end(r)
	switch {
	case reply.Fenced:
		r.answer(control.KVReply{}, wire.CodeFenced)
	case reply.Refused != "":
		r.refuse(wire.CodeRefused, reply.Refused)
	default:
		r.answer(reply, wire.CodeOK)
	}
}

// Tick asks what had to wait, and again what the leader could not answer yet.
func (d *Desk) Tick() {
	for _, r := range d.pending.inOrder() {
		if r.again {
			d.send(r)
		}
	}
}

// Resend brings a new leader what processes here contributed, and then what they wait for.
func (d *Desk) Resend() {
	for _, frame := range d.ledgers.frames() {
		d.owner.Send(frame)
	}
	for _, r := range d.pending.inOrder() {
		if !r.early {
			d.send(r)
		}
	}
}

// JobsTold follows each state that a leader tells: it places what waited for its job, and drops what an earlier daemon kept for jobs
// that ended while no daemon was here to see that.
func (d *Desk) JobsTold() {
	d.dropLedgers(func(s scope) bool { _, known := d.owner.Job(s.job); return !known })
	for _, r := range d.pending.inOrder() {
		if r.early {
			d.place(r)
		}
	}
}

// Fence answers every request of an epoch of the job up to closed, and forgets what was contributed to it.
func (d *Desk) Fence(job replica.JobID, closed replica.Epoch) {
	for _, r := range d.pending.inOrder() {
		if r.by.Job == job && r.head.Epoch <= closed && !r.early { // an early one is placed when all is known
			d.pending.end(r)
			r.answer(control.KVReply{}, wire.CodeFenced)
		}
	}
	d.dropLedgers(func(s scope) bool { return s.job == job && s.epoch <= closed })
}

// Waits tells whether a process of the rank waits for an answer.
func (d *Desk) Waits(job replica.JobID, rank replica.Rank) bool {
	for _, r := range d.pending.all {
		if r.peer != nil && r.by.Job == job && r.by.Rank == rank {
			return true
		}
	}
	return false
}
