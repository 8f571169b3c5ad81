package consensus

import (
	"context"
	"time"
)

// A gate bounds the goroutines that wait for raft: its futures know no context, so when a caller's context ends, the wait
// goes on without it, holding its token. Who takes all tokens knows that nobody waits any more.
type gate struct {
	life   context.Context
	tokens chan struct{}
}

func newGate(life context.Context, n int) gate { return gate{life, make(chan struct{}, n)} }

// call runs fn in a goroutine once a token is free.
func (g gate) call(ctx context.Context, fn func()) error {
	if g.life.Err() != nil {
		return ErrClosed
	}
	select {
	case g.tokens <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.life.Done():
		return ErrClosed
	}
	go func() {
		defer func() { <-g.tokens }()
		fn()
	}()
	return nil
}

// collect takes tokens until it holds all or d has passed, and returns how many it holds.
func (g gate) collect(held int, d time.Duration) int {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for held < cap(g.tokens) {
		select {
		case g.tokens <- struct{}{}:
			held++
		case <-timeout.C:
			return held
		}
	}
	return held
}
