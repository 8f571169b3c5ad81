package mover

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/replicad/replicad/transfer"
)

// pushQueue bounds what waits for one pusher. What waits holds its place, so a longer line to a mirror that is away would fill the arena.
const pushQueue = 4

// ErrSuperseded ends a push that no commit waits for any more, for one of the same part that a commit does wait for, one that its node does
// not take yet, for one of another part, and one to a node that is not to mirror the part any more.
var ErrSuperseded = errors.New("a newer step of the part is to be sent, another part while the node does not take this one, or the part to another node")

// pushLine is what waits for one pusher, and what is under way. The mover's owner puts, the pusher takes.
//
// Old steps do not queue up: of a part that no commit waits for, the newest generation alone waits, and a mirror that is behind gets that
// next. What a commit waits for is never displaced by newer steps, or a slow mirror would be overtaken for ever; it goes first, and breaks
// off what is under way of the same part and of use to nobody, whose rest would only delay it.
//
// What the mirror does not take yet gives way to another part: it may be a frozen one that the mirror takes beside what binds it, which waits.
type pushLine struct {
	mu      sync.Mutex // guards the rest; nothing waits with it held
	waiting []Push
	now     transfer.Key            // under way
	leave   context.CancelCauseFunc // breaks that off; nil: nothing is under way
	notYet  bool                    // what is under way was last answered so
	more    chan struct{}           // something was put; capacity 1
}

func newPushLine() *pushLine { return &pushLine{more: make(chan struct{}, 1)} }

// put adds a part, and says what is not to be sent after all. awaited tells which parts a commit waits for.
func (l *pushLine) put(p Push, awaited func(transfer.Key) bool) (dropped []Push) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.waiting {
		l.waiting[i].awaited = awaited(l.waiting[i].Key)
	}
	if l.leave != nil && l.now == p.Key || slices.ContainsFunc(l.waiting, func(w Push) bool { return w.Key == p.Key }) {
		return []Push{p}
	}
	p.awaited = awaited(p.Key)
	old := func(w Push) bool {
		return !w.awaited && slices.ContainsFunc(l.waiting, func(o Push) bool { return !o.awaited && newer(o.Key, w.Key) })
	}
	l.waiting = append(l.waiting, p)
	for i := slices.IndexFunc(l.waiting, old); i >= 0; i = slices.IndexFunc(l.waiting, old) {
		dropped = append(dropped, l.waiting[i])
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	for len(l.waiting) > pushQueue {
		i := max(0, slices.IndexFunc(l.waiting, func(w Push) bool { return !w.awaited }))
		dropped = append(dropped, l.waiting[i])
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	if l.leave != nil && p.awaited && newer(p.Key, l.now) && !awaited(l.now) {
		l.leave(ErrSuperseded)
	}
	l.giveWay()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return dropped
}

// prune takes out what is not wanted any more, and breaks it off where it is under way.
func (l *pushLine) prune(wanted func(transfer.Key) bool) (dropped []Push) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(w Push) bool {
		if wanted(w.Key) {
			return false
		}
		dropped = append(dropped, w)
		return true
	})
	if l.leave != nil && !wanted(l.now) {
		l.leave(ErrSuperseded)
	}
	return dropped
}

// answered notes whether the mirror does not take yet what is under way.
func (l *pushLine) answered(notYet bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notYet = notYet
	l.giveWay()
}

func (l *pushLine) giveWay() {
	if l.leave != nil && l.notYet && slices.ContainsFunc(l.waiting, func(w Push) bool { return w.Key.Part != l.now.Part }) {
		l.leave(ErrSuperseded)
	}
}

// newer tells whether a is a newer generation of the part that b is of.
func newer(a, b transfer.Key) bool { return a.Part == b.Part && a.Generation.Compare(b.Generation) > 0 }

// take takes what a commit waits for, else what has waited longest: of each part the newest alone waits, and the steps of one may come faster
// than they are sent. It is under way, in the context returned, until done is called.
func (l *pushLine) take(ctx context.Context) (at context.Context, p Push, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return ctx, p, false
	}
	i := max(0, slices.IndexFunc(l.waiting, func(w Push) bool { return w.awaited }))
	p = l.waiting[i]
	l.waiting = slices.Delete(l.waiting, i, i+1)
	at, l.leave = context.WithCancelCause(ctx)
	l.now, l.notYet = p.Key, false
	return at, p, true
}

// done says that what was taken last is not under way any more.
func (l *pushLine) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(nil)
	l.leave = nil
}
