package leader

import (
	"maps"
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	registerEvery = time.Second // each registration is an entry of the log: a node may make one so often in the long run
	registerBurst = 8           // and so many at once
	registerNodes = 1 << 14     // whose paces are remembered
)

// paces hold each node's registrations to a pace.
type paces struct {
	mu  sync.Mutex                     // guards due
	due map[replica.NodeName]time.Time // when a node would be at its pace again
}

// may tells whether a node may register now, and counts it.
func (p *paces) may(n replica.NodeName, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due == nil || len(p.due) >= registerNodes {
		maps.DeleteFunc(p.due, func(_ replica.NodeName, due time.Time) bool { return !now.Before(due) })
	}
	due := p.due[n]
	if due.Before(now) {
		due = now
	}
	if due = due.Add(registerEvery); due.Sub(now) > registerBurst*registerEvery || len(p.due) >= registerNodes {
		return false
	}
	if p.due == nil {
		p.due = map[replica.NodeName]time.Time{}
	}
	p.due[n] = due
	return true
}
