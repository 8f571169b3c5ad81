package mover

import (
	"slices"
	"sync"

	"github.com/replicad/replicad/transfer"
)

// pushQueue bounds what of one rank waits for one mirror. What waits holds its place, so a longer line to a mirror that is away would fill
// the private ring.
const pushQueue = 3

// pushLine is what waits for one pusher. The mover's owner puts, the pusher takes.
//
// Beyond pushQueue the oldest is dropped that no commit waits for: a mirror that is behind gets the newest steps, but never one of them in
// the place of the candidate, or a slow mirror would be overtaken for ever.
type pushLine struct {
	mu      sync.Mutex // guards waiting; nothing waits with it held
	waiting []Push
	more    chan struct{} // something was put; capacity 1
}

func newPushLine() *pushLine { return &pushLine{more: make(chan struct{}, 1)} }

// put adds a part, and says what is not to be sent after all. awaited tells which parts a commit waits for.
func (l *pushLine) put(p Push, awaited func(transfer.Key) bool) (dropped []Push) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.waiting, func(w Push) bool { return w.Key == p.Key }) {
		return []Push{p}
	}
	l.waiting = append(l.waiting, p)
	for i := range l.waiting {
		l.waiting[i].awaited = awaited(l.waiting[i].Key)
	}
	for len(l.waiting) > pushQueue {
		i := max(0, slices.IndexFunc(l.waiting, func(w Push) bool { return !w.awaited }))
		dropped = append(dropped, l.waiting[i])
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	select {
	case l.more <- struct{}{}:
	default:
	}
	return dropped
}

// take takes what a commit waits for, else the oldest.
func (l *pushLine) take() (p Push, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return p, false
	}
	i := max(0, slices.IndexFunc(l.waiting, func(w Push) bool { return w.awaited }))
	p = l.waiting[i]
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return p, true
}
