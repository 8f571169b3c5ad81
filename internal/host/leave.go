package host

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
)

// leaveQuiet is how long a daemon that was asked to end waits for a word of a leader: without one nothing is written either.
const leaveQuiet = 10 * time.Second

// leaveAsked has the leader asked whether this node's daemon may end. Why it is to wait goes to words, an empty text once it may.
type leaveAsked struct{ words chan string }

// Leave returns once this node's daemon may end: nothing is to be written to the durable tier that can't be without it; or when ctx ends, or no
// leader says anything. wait hears why it waits, as often as that changes, and that it was given up, with what is not on disk. No leader counts on
// the daemon from then on.
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
			wait("no leader has answered for " + leaveQuiet.String() + ": it is not waited for any longer" + h.goesWithout())
			return
		case <-ctx.Done():
			if without := h.goesWithout(); last+without != "" {
				wait("it ends all the same, though this is not over: " + cmp.Or(last, "no leader has answered") + without)
			}
			return
		}
	}
}

// goesWithout has the daemon end without a leader's consent, and says what is not on disk by then, as far as is known here.
func (h *Host) goesWithout() string {
	owed := make(chan []string, 1)
	h.Post(goesNow{owed})
	select {
	case list := <-owed:
		if len(list) > 0 {
			return "; NOT on disk: " + strings.Join(list, ", ") + "; memory has that for as long as the keepers run: start the daemons again"
		}
	case <-h.ended:
	case <-time.After(leaveQuiet): // the host hangs, and must not hold up the end
	}
	return ""
}

// goesNow has the daemon end, whatever a leader says. What is not on disk goes to owed.
type goesNow struct{ owed chan<- []string }

func (h *Host) goesNow(ev goesNow) {
	var list []string
	for _, lj := range h.jobs {
		if lj.job.Undurable() {
			list = append(list, fmt.Sprintf("step %d of job %s", lj.job.Committed.Step, lj.job.Name))
		}
	}
	slices.Sort(list)
	if !h.informed {
		list = []string{"what jobs have committed, unless it was written before (no leader has told this daemon of any)"}
	}
	h.goes = true
	h.send(control.Leaving{Goes: true})
	ev.owed <- list
}

// leaves asks the leader, where there is anything to ask. A daemon that no leader has told of the jobs yet can't know whether there is: it may have
// been started again over memory that the newest commit lies in, or be the vote that a write of it needs.
func (h *Host) leaves(ev leaveAsked) {
	h.leaving = ev.words
	if !h.informed {
		h.send(control.Leaving{})
		return
	}
	for _, lj := range h.jobs {
		if lj.job.Undurable() {
			h.send(control.Leaving{})
			return
		}
	}
	h.send(control.Leaving{Goes: true})
	h.mayLeave(control.MayLeave{})
}

// mayLeave passes the leader's word on. A word that nobody has taken yet is replaced. With its consent the daemon goes: it links to no other leader,
// which would not know of that, and might let the rest of what this node has go.
func (h *Host) mayLeave(m control.MayLeave) {
	if h.leaving == nil {
		return
	}
	h.goes = h.goes || m.Why == ""
	select {
	case <-h.leaving:
	default:
	}
	h.leaving <- m.Why
}
