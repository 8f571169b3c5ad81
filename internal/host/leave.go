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

// leaving is the end of this daemon.
type leaving struct {
	words chan string // why it is to wait before it ends, which it was asked to; nil: it was not
	goes  bool        // it ends, whatever a leader says now
}

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
			wait("no leader has answered for " + leaveQuiet.String() + ": it is not waited for any longer" + h.goesWithout(ctx))
			return
		case <-ctx.Done():
			if without := h.goesWithout(ctx); last+without != "" {
				wait("it ends all the same, though this is not over: " + cmp.Or(last, "no leader has answered") + without)
			}
			return
		}
	}
}

// goesWithout has the daemon end without a leader's consent, and says what is not on disk by then, as far as is known here.
func (h *Host) goesWithout(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveQuiet) // a host that hangs must not hold up the end
	defer cancel()
	var p parting
	if !h.ask(ctx, &p) || len(p.owed) == 0 {
		return ""
	}
	return "; NOT on disk: " + strings.Join(p.owed, ", ") + "; memory has that for as long as the keepers run: start the daemons again"
}

// parting has the daemon end, whatever a leader says. owed is what is not on disk.
type parting struct{ owed []string }

func (p *parting) serve(h *Host) {
	for _, lj := range h.jobs {
		if lj.job.Undurable() {
			p.owed = append(p.owed, fmt.Sprintf("step %d of job %s", lj.job.Committed.Step, lj.job.Name))
		}
	}
	slices.Sort(p.owed)
	if !h.informed {
		p.owed = []string{"what jobs have committed, unless it was written before (no leader has told this daemon of any)"}
	}
	h.leaving.goes = true
	h.send(control.Leaving{Goes: true})
}

// leaves asks the leader, where there is anything to ask. A daemon that no leader has told of the jobs yet can't know whether there is: it may have
// been started again over memory that the newest commit lies in, or be the vote that a write of it needs.
func (h *Host) leaves(ev leaveAsked) {
	h.leaving.words = ev.words
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
	if h.leaving.words == nil {
		return
	}
	h.leaving.goes = h.leaving.goes || m.Why == ""
	select {
	case <-h.leaving.words:
	default:
	}
	h.leaving.words <- m.Why
}
