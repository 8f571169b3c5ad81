package host

import (
	"cmp"
	"context"
	"time"

	"github.com/replicad/replicad/internal/control"
)

const (
	// leaveQuiet is how long a daemon that was asked to end waits for a word of a leader: without one nothing is written to the store either.
	leaveQuiet = 10 * time.Second
	// leaveLays is how long it waits for one before it lays what it holds of what is committed down in its spool. It does so in any case once half of
	// the time that it has to end is over: the store may be slow.
	leaveLays = 3 * time.Second
)

// leaveAsked has the leader asked whether this node's daemon may end. Its words go to words.
type leaveAsked struct{ words chan control.MayLeave }

// leaving is the end of this daemon.
type leaving struct {
	words chan control.MayLeave // whether it may end, which it was asked to; nil: it was not
	goes  bool                  // it ends, whatever a leader says now
}

// Leave returns once this node's daemon may end: nothing is to be written to the durable tier that can't be without it; or when ctx ends, or no
// leader says anything. wait hears why it waits, as often as that changes, and that it was given up, with what is not in the store, and where it is. No
// leader counts on the daemon from then on.
func (h *Host) Leave(ctx context.Context, wait func(why string)) {
	words := make(chan control.MayLeave, 1)
	h.Post(leaveAsked{words})
	quiet, lays := time.NewTimer(leaveQuiet), time.NewTimer(leaveLays)
	defer quiet.Stop()
	defer lays.Stop()
	half := time.NewTimer(grace(ctx) / 2)
	defer half.Stop()
	down := newLaying(h)
	defer down.end()
	last, over := "", ""
	for {
		select {
		case m := <-words:
			if m.Why == "" && !m.Keep {
				down.drop(ctx)
				return
			}
			if m.Why == "" {
				over = "it may end"
				down.begin(ctx)
				break
			}
			if m.Why != last {
				wait(m.Why)
			}
			last, over = m.Why, ""
			quiet.Reset(leaveQuiet)
			lays.Reset(leaveLays)
		case <-lays.C:
			down.begin(ctx)
		case <-half.C:
			down.begin(ctx)
		case <-down.done():
			down.take()
		case <-quiet.C:
			over = "no leader has answered for " + leaveQuiet.String() + ": it is not waited for any longer"
			down.begin(ctx)
		case <-ctx.Done():
			down.end()
			if without := down.without(ctx); last+without != "" {
				wait("it ends all the same, though this is not over: " + cmp.Or(last, "no leader has answered") + without)
			}
			return
		}
		if over != "" && !down.under() {
			if without := down.without(ctx); without != "" || last != "" || over[0] == 'n' {
				wait(over + without)
			}
			return
		}
	}
}

// grace is how long a context lasts.
func grace(ctx context.Context) time.Duration {
	at, ok := ctx.Deadline()
	if !ok {
		return 24 * time.Hour
	}
	return time.Until(at)
}

// leaves asks the leader, where there is anything to ask. A daemon that no leader has told of the jobs yet can't know whether there is: it may have
// been started again over memory that the newest commit lies in, or be the vote that a write of it needs.
func (h *Host) leaves(ev leaveAsked) {
	h.leaving.words = ev.words
	if !h.informed {
		h.send(control.Leaving{})
		return
	}
	for _, j := range h.jobs.all {
		if j.Job.Undurable() {
			h.send(control.Leaving{})
			return
		}
	}
	h.send(control.Leaving{Goes: true})
	h.leaving.may(control.MayLeave{})
}

// may passes the leader's word on. A word that nobody has taken yet is replaced. With its consent the daemon goes: it links to no other
// leader, which would not know of that, and might let the rest of what this node has go.
func (l *leaving) may(m control.MayLeave) {
	if l.words == nil {
		return
	}
	l.goes = l.goes || m.Why == ""
	select {
	case <-l.words:
	default:
	}
	l.words <- m
}
