package host

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
)

// Status is what a host knows of its cluster by itself.
type Status struct {
	Linked     bool // to Leader, which leads in Term
	Leader     replica.NodeName
	Term       uint64
	Adopting   bool // arenas may still come back from ranks that live
	KeeperLost bool
	Scrubbed   control.ScrubStatus
	Nodes      map[replica.NodeName]replica.Node
	Jobs       []control.JobStatus
	Sizes      []control.SizeStatus
	Traffic    []mover.Traffic
	Holding    manners.Holding
	Requests   map[uint32]int // to the leader for each user, in the newest whole spell
}

// Status asks the host. False: it has ended, or ctx has.
func (h *Host) Status(ctx context.Context) (st Status, ok bool) {
	ok = h.ask(ctx, &st)
	return st, ok
}

func (st *Status) serve(h *Host) {
	*st = Status{Linked: h.link != nil, Leader: h.leader, Term: h.term, Adopting: h.adoption.Awaiting(), KeeperLost: h.hands.Custody.Lost(), Scrubbed: h.scrub.Status(),
		Nodes: h.nodes, Traffic: h.hands.Mover.Traffic(), Holding: h.hands.Pacer.Holding(), Requests: h.asking.Sent()}
	for _, j := range h.jobs.all {
		st.Jobs = append(st.Jobs, j.Status())
		if s, ok := j.Size(); ok {
			st.Sizes = append(st.Sizes, s)
		}
	}
}

// Ask sends the leader the question that ask makes under a new number, and waits for its answer. False: none came.
func (h *Host) Ask(ctx context.Context, patience time.Duration, ask func(id uint64) any) (reply any, ok bool) {
	q := question{message: ask, answer: make(chan any, 1)}
	if !h.ask(ctx, &q) || q.id == 0 {
		return nil, false
	}
	defer h.ask(context.WithoutCancel(ctx), &questionOver{q.id})
	select {
	case reply, ok = <-q.answer: // closed: the link went down
		return reply, ok
	case <-time.After(patience):
	case <-ctx.Done():
	}
	return nil, false
}

// question is sent to the leader, and questionOver forgets it.
type (
	question struct {
		message func(id uint64) any
		answer  chan any // for its one answer
		id      uint64   // 0: there is no leader
	}
	questionOver struct{ id uint64 }
)

func (q *question) serve(h *Host) {
	if h.link != nil {
		q.id = h.nextRequest()
		h.questions[q.id] = q.answer
		h.send(q.message(q.id))
	}
}

func (q *questionOver) serve(h *Host) { delete(h.questions, q.id) }

// Witness is what a node's word on the silence of others rests on: whom it has to probe, and how its own ranks get on.
type Witness struct {
	Nodes map[replica.NodeName]replica.Node // without this one
	Live  map[replica.JobID]replica.Step    // the newest step that a live rank here has begun
	Steps map[replica.JobID]control.StepMS
	Idle  bool // no job is known that has not ended: nothing waits to hear that a node is silent
}

// Witness asks the host. False: it has ended, or ctx has.
func (h *Host) Witness(ctx context.Context) (w Witness, ok bool) {
	ok = h.ask(ctx, &w)
	return w, ok
}

func (w *Witness) serve(h *Host) {
	*w = Witness{Nodes: map[replica.NodeName]replica.Node{}, Live: map[replica.JobID]replica.Step{}, Steps: map[replica.JobID]control.StepMS{}}
	w.Idle = h.jobs.ended()
	for name, n := range h.nodes {
		if name != h.self.Name {
			w.Nodes[name] = n
		}
	}
	for id, j := range h.jobs.all {
		if step, ok := j.Live(); ok {
			w.Live[id] = step
		}
		if s, ok := j.Steps(); ok {
			w.Steps[id] = s
		}
	}
}

// Suspect tells the host which nodes a round of probes gave cause to suspect.
func (h *Host) Suspect(ctx context.Context, suspects []control.Suspect) {
	h.ask(ctx, &suspicions{suspects})
}

type suspicions struct{ of []control.Suspect }

func (q *suspicions) serve(h *Host) { h.suspected(q.of) }
