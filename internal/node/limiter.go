package node

import (
	"maps"
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	limitEvery = 30 * time.Second // between two lines of one kind
	limitKinds = 64               // that are told apart; with more the newcomers wait
)

// limiter lets one line of each kind through in a while: libraries repeat what they warn of many times a second.
type limiter struct {
	mu    sync.Mutex // guards kinds
	kinds map[string]limited
}

type limited struct {
	next time.Time // when the next line may pass
	held int       // lines since
}

// due tells whether a line of the kind may pass now, and how many like it were held back before.
func (l *limiter) due(kind string, now time.Time) (ok bool, held int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil {
		l.kinds = map[string]limited{}
	}
	k, known := l.kinds[kind]
	if !known && len(l.kinds) >= limitKinds {
		maps.DeleteFunc(l.kinds, func(_ string, k limited) bool { return !now.Before(k.next) })
		if len(l.kinds) >= limitKinds {
			return false, 0
		}
	}
	if now.Before(k.next) {
		k.held++
		l.kinds[kind] = k
		return false, 0
	}
	l.kinds[kind] = limited{next: now.Add(limitEvery)}
	return true, k.held
}

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
