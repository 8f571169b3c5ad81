package host

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// Status is what a host knows of its cluster by itself.
type Status struct {
	Linked     bool // to Leader, which leads in Term
	Leader     replica.NodeName
	Term       uint64
	Adopting   bool // arenas may still come back from ranks that live
	KeeperLost bool
	Nodes      map[replica.NodeName]replica.Node
	Jobs       []control.JobStatus
}

// Status asks the host. False: it has ended, or ctx has.
func (h *Host) Status(ctx context.Context) (st Status, ok bool) {
	ok = h.do(ctx, func() {
		st = Status{Linked: h.link != nil, Leader: h.leader, Term: h.term, Adopting: len(h.awaited) > 0, KeeperLost: h.keeperLost, Nodes: h.nodes}
		for _, lj := range h.jobs {
			st.Jobs = append(st.Jobs, control.StatusOf(lj.job, nil))
		}
	})
	return st, ok
}

// Ask sends the leader the question that ask makes under a new number, and waits for its answer. False: none came.
func (h *Host) Ask(ctx context.Context, patience time.Duration, ask func(id uint64) any) (reply any, ok bool) {
	answer := make(chan any, 1) // for its one answer
	var id uint64               // 0: no leader
	h.do(ctx, func() {
		if h.link != nil {
			id = h.nextRequest()
			h.questions[id] = answer
			h.send(ask(id))
		}
	})
	if id == 0 {
		return nil, false
	}
	defer h.do(context.WithoutCancel(ctx), func() { delete(h.questions, id) })
	select {
	case reply, ok = <-answer: // closed: the link went down
		return reply, ok
	case <-time.After(patience):
	case <-ctx.Done():
	}
	return nil, false
}

// answered passes an answer of the leader's on to who asked.
func (h *Host) answered(id uint64, reply any) {
	if answer := h.questions[id]; answer != nil {
		delete(h.questions, id)
		answer <- reply
	}
}

// Witness is what a node's word on the silence of others rests on: whom it has to probe, and how its own ranks get on.
type Witness struct {
	Nodes map[replica.NodeName]replica.Node // without this one
	Live  map[replica.JobID]replica.Step    // the newest step that a live rank here has begun
	Steps map[replica.JobID]control.StepMS
}

// Witness asks the host. False: it has ended, or ctx has.
func (h *Host) Witness(ctx context.Context) (w Witness, ok bool) {
	w = Witness{Nodes: map[replica.NodeName]replica.Node{}, Live: map[replica.JobID]replica.Step{}, Steps: map[replica.JobID]control.StepMS{}}
	ok = h.do(ctx, func() {
		for name, n := range h.nodes {
			if name != h.self.Name {
				w.Nodes[name] = n
			}
		}
		for id, lj := range h.jobs {
			for _, lr := range lj.ranks {
				if lr.alive() {
					w.Live[id] = max(w.Live[id], lr.arena.Step().Step())
				}
			}
			if s, ok := h.stepsOf(lj); ok {
				w.Steps[id] = s
			}
		}
	})
	return w, ok
}

// Suspect tells the host which nodes a round of probes gave cause to suspect.
func (h *Host) Suspect(ctx context.Context, suspects []control.Suspect) {
	h.do(ctx, func() { h.suspected(suspects) })
}
