package journal

import (
	"maps"
	"sync"
	"time"
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
