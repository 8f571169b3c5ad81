package recovery

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// outbox is what a leader asks for: the effects of the present step, when it is to look again, and what it need not ask for twice.
type outbox struct {
	known   *known
	effects []Effect
	wake    time.Duration       // negative: none
	pending map[string]proposed // proposals by name
	noted   map[string]string
}

func newOutbox(k *known) outbox {
	return outbox{known: k, wake: -1, pending: make(map[string]proposed), noted: make(map[string]string)}
}

// send asks for effects.
func (ob *outbox) send(e ...Effect) { ob.effects = append(ob.effects, e...) }

// propose makes a proposal unless it is under way.
func (ob *outbox) propose(c replica.Command) {
	name := proposalName(c)
	p, ok := ob.pending[name]
	if !ok {
		p = proposed{ob.known.now + max(ob.known.t.Ack, time.Second), ob.known.job.LastIndex}
		ob.pending[name] = p
	}
	ob.wakeAt(p.again)
	if ok {
		return
	}
	ob.send(Propose{c})
}

// proposed tells whether a proposal is under way.
func (ob *outbox) proposed(c replica.Command) bool {
	p, ok := ob.pending[proposalName(c)]
	if ok {
		ob.wakeAt(p.again)
	}
	return ok
}

// proposed is a proposal that was made, on the job as an entry left it.
type proposed struct {
	again time.Duration // when it may be made again
	on    uint64
}

// proposalName tells proposals apart that may be outstanding together.
func proposalName(c replica.Command) string {
	switch c := c.(type) {
	case replica.ReportFault:
		return fmt.Sprintf("fault %v at %d", plan.KeyOf(c.Fault), c.Fault.Epoch)
	case replica.ApplyPlan:
		return fmt.Sprintf("plan %d on %d", c.Plan.Epoch, c.Plan.Cites)
	case replica.Resume:
		return fmt.Sprintf("resume %d %v", c.Epoch, c.Spread)
	case replica.Grow:
		return fmt.Sprintf("grow %d", c.Epoch)
	case replica.Begin:
		return fmt.Sprintf("begin %d", c.Epoch)
	case replica.Quarantine:
		return fmt.Sprintf("quarantine %s %v", c.Node, c.Clear)
	case replica.Condemn:
		return fmt.Sprintf("condemn %v", c.Generation)
	case replica.SetCopies:
		return fmt.Sprintf("copies %d", c.Copies)
	case replica.RegisterNode:
		return fmt.Sprintf("register %s %d session %d", c.Node.Name, c.Node.Incarnation, c.Node.Session)
	}
	return fmt.Sprintf("%T", c) // of these one at a time is enough: whatever the next says is of the state after it
}

func (ob *outbox) wakeAt(at time.Duration) {
	if at > ob.known.now && (ob.wake < 0 || at < ob.wake) {
		ob.wake = at
	}
}

// note tells people something once, until it changes.
func (ob *outbox) note(code, text string, fields map[string]string) {
	if ob.noted[code] != text {
		ob.noted[code] = text
		ob.send(Note{code, text, fields})
	}
}
