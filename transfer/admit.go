package transfer

import (
	"fmt"
	"sync"

	"github.com/replicad/replicad/replica"
)

// Limit wraps a store so that at most total transfers run on it at once, and at most perPeer of one peer; further ones
// are refused with ErrRefused, which the other side retries with jitter. Fetches and pushes are counted together.
func Limit(st Store, total, perPeer int) Store {
	return &limited{st: st, total: total, perPeer: perPeer, of: make(map[replica.NodeName]int)}
}

// limited counts what runs; mu guards the counts.
type limited struct {
	st             Store
	total, perPeer int

	mu  sync.Mutex
	all int
	of  map[replica.NodeName]int
}

func (l *limited) enter(peer replica.NodeName) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.total {
		return fmt.Errorf("%w: %d transfers run here, at most %d", ErrRefused, l.all, l.total)
	}
	if l.of[peer] >= l.perPeer {
		return fmt.Errorf("%w: %d transfers run for %s, at most %d", ErrRefused, l.of[peer], peer, l.perPeer)
	}
	l.all++
	l.of[peer]++
	return nil
}

func (l *limited) leave(peer replica.NodeName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.of[peer]--; l.of[peer] == 0 {
		delete(l.of, peer)
	}
}

func (l *limited) Open(peer replica.NodeName, k Key) (Reader, error) {
	if err := l.enter(peer); err != nil {
		return nil, err
	}
	r, err := l.st.Open(peer, k)
	if err != nil {
		l.leave(peer)
		return nil, err
	}
	return &limitedReader{Reader: r, leave: func() { l.leave(peer) }}, nil
}

func (l *limited) Accept(peer replica.NodeName, k Key, m replica.Manifest) (Sink, func(error) error, error) {
	if err := l.enter(peer); err != nil {
		return nil, nil, err
	}
	sink, finish, err := l.st.Accept(peer, k, m)
	if err != nil {
		l.leave(peer)
		return nil, nil, err
	}
	return sink, func(err error) error {
		defer l.leave(peer)
		return finish(err)
	}, nil
}

type limitedReader struct {
	Reader
	leave func()
	once  sync.Once
}

func (r *limitedReader) Close() {
	r.Reader.Close()
	r.once.Do(r.leave)
}
