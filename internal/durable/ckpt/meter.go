package ckpt

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/store"
)

// meterEvery is how much time lies between two lines about a command that moves many bytes.
const meterEvery = 10 * time.Second

// Meter prints how far such a command is. One that is done sooner prints nothing.
type Meter struct {
	what string
	to   io.Writer
	now  func() time.Time

	mu    sync.Mutex // guards the rest
	began time.Time
	last  time.Time
	done  uint64
}

// NewMeter begins with now. It prints to notes, and what is done names the command.
func NewMeter(notes io.Writer, what string) *Meter {
	return &Meter{what: what, to: notes, now: time.Now, began: time.Now(), last: time.Now()}
}

// Moved takes bytes into account, of so many.
func (s *Meter) Moved(bytes int, of uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done += uint64(bytes)
	now := s.now()
	if now.Sub(s.last) < meterEvery {
		return
	}
	s.last = now
	console.Printf(s.to, "%s: %d %% of %s, %s/s\n", s.what, min(100, s.done*100/max(of, 1)), console.Size(of),
		console.Size(uint64(float64(s.done)/now.Sub(s.began).Seconds())))
}

// at is moved with all that was moved.
func (s *Meter) at(done, of uint64) {
	s.mu.Lock()
	more := int(done) - int(s.done)
	s.mu.Unlock()
	s.Moved(more, of)
}

// written has a context tell of the bytes that stores take.
func (s *Meter) written(ctx context.Context, of uint64) context.Context {
	return store.Watching(ctx, store.Watch{Moved: func(bytes int) { s.Moved(bytes, of) }})
}
