package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
)

// maxNoLinks is how many lives are kept; with more the newcomers wait.
const maxNoLinks = 64

// NoLinkKept is for how long status shows a link that failed, after the last try: longer than the longest pause between two tries.
const NoLinkKept = time.Minute

// failedLink is a NoLink and when it was tried last.
type failedLink struct {
	NoLink
	last time.Time
}

// NoLinks are the links of one direction that failed lately, one for each life of a node: another daemon of the same name may be linked.
type NoLinks struct {
	mu   sync.Mutex // guards list
	list map[replica.Holder]failedLink
}

// Add counts a link to, or of, one life of a node that failed now, and why.
func (l *NoLinks) Add(of replica.Holder, why string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list == nil {
		l.list = map[replica.Holder]failedLink{}
	}
	l.prune(now)
	n, known := l.list[of]
	if !known && len(l.list) >= maxNoLinks {
		return
	}
	if !known {
		n.NoLink = NoLink{Node: of.Node, Incarnation: of.Incarnation, Since: now}
	}
	n.Why, n.last = why, now
	n.Tries++
	l.list[of] = n
}

// prune forgets what was not tried again.
func (l *NoLinks) prune(now time.Time) {
	maps.DeleteFunc(l.list, func(_ replica.Holder, n failedLink) bool { return now.Sub(n.last) > NoLinkKept })
}

// Linked forgets that life of a node, which has a link now, and what no life was named for.
func (l *NoLinks) Linked(of replica.Holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.list, of)
	delete(l.list, replica.Holder{Node: of.Node})
}

// Clear forgets all.
func (l *NoLinks) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.list)
}

// Now lists them by name.
func (l *NoLinks) Now(now time.Time) []NoLink {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prune(now)
	var out []NoLink
	for _, n := range l.list {
		out = append(out, n.NoLink)
	}
	slices.SortFunc(out, func(a, b NoLink) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return out
}

// Life names a node in a sentence.
func Life(h replica.Holder) string {
	if h.Incarnation == 0 {
		return "node " + string(h.Node)
	}
	return fmt.Sprintf("node %s (incarnation %d)", h.Node, h.Incarnation)
}
