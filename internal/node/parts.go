package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// endLate is how long the parts of a daemon have to end before people are told which of them does not.
const endLate = 15 * time.Second

// parts are what a daemon consists of while it runs. They end together.
type parts struct {
	cancel context.CancelCauseFunc // ends the others when one fails
	late   func(names []string)    // told once, some time after the end, who has not ended
	work   sync.WaitGroup

	mu    sync.Mutex // guards names
	names []string   // of those that run
}

// start runs a part.
func (p *parts) start(ctx context.Context, name string, fn func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = append(p.names, name)
	p.work.Go(func() {
		if err := fn(ctx); err != nil && ctx.Err() == nil {
			p.cancel(fmt.Errorf("%s: %w", name, err))
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		at := slices.Index(p.names, name)
		p.names = slices.Delete(p.names, at, at+1)
	})
}

// wait returns once all have ended. One that does not end after ctx has would hold the daemon up, and nobody would know what to look at.
func (p *parts) wait(ctx context.Context) {
	var watch sync.WaitGroup
	done := make(chan struct{})
	watch.Go(func() {
		select {
		case <-ctx.Done():
		case <-done:
			return
		}
		timer := time.NewTimer(endLate)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			p.late(p.running())
		}
	})
	p.work.Wait()
	close(done)
	watch.Wait()
}

func (p *parts) running() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.names)
}
