package host

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/control"
)

// leaveQuiet is how long a daemon that was asked to end waits for a word of a leader: without one nothing is written either.
const leaveQuiet = 10 * time.Second

// leaveAsked has the leader asked whether this node's daemon may end. Why it is to wait goes to words, an empty text once it may.
type leaveAsked struct{ words chan string }

// Leave returns once this node's daemon may end: nothing is to be written to the durable tier that can't be without it; or when ctx ends, or no
// leader says anything. wait hears why it waits, as often as that changes, and that it was given up.
func (h *Host) Leave(ctx context.Context, wait func(why string)) {
	words := make(chan string, 1)
	h.Post(leaveAsked{words})
	quiet := time.NewTimer(leaveQuiet)
	defer quiet.Stop()
	for last := ""; ; {
		select {
		case why := <-words:
			if why == "" {
				return
			}
			if why != last {
				wait(why)
			}
			last = why
			quiet.Reset(leaveQuiet)
		case <-quiet.C:
			wait("no leader has answered for " + leaveQuiet.String() + ": it is not waited for any longer")
			return
		case <-ctx.Done():
			if last != "" {
				wait("it ends all the same, though this is not over: " + last)
			}
			return
		}
	}
}

// leaves asks the leader, where there is anything to ask.
func (h *Host) leaves(ev leaveAsked) {
	h.leaving = ev.words
	for _, lj := range h.jobs {
		if lj.job.Undurable() {
			h.send(control.Leaving{})
			return
		}
	}
	h.mayLeave(control.MayLeave{})
}

// mayLeave passes the leader's word on. A word that nobody has taken yet is replaced.
func (h *Host) mayLeave(m control.MayLeave) {
	if h.leaving == nil {
		return
	}
	select {
	case <-h.leaving:
	default:
	}
	h.leaving <- m.Why
}
