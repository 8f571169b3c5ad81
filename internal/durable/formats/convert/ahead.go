package convert

import (
	"context"
	"fmt"
	"sync"

	"github.com/replicad/replicad/replica"
)

// lanes is how many chunks are read at once.
const lanes = 4

// reading reads the chunks of a part in order, the next ones while one is used. It belongs to one goroutine.
type reading struct {
	ctx   context.Context
	stop  context.CancelCauseFunc
	wg    sync.WaitGroup
	free  chan []byte
	queue chan chan chunk
	at    int    // the chunk that comes next
	last  []byte // the one that is used
}

type chunk struct {
	b   []byte
	err error
}

// ahead begins to read the group's part.
func (s *sealed) ahead(ctx context.Context) *reading {
	m := &s.shared.Manifest
	r := &reading{free: make(chan []byte, 2*lanes), queue: make(chan chan chunk, 2*lanes)}
	r.ctx, r.stop = context.WithCancelCause(ctx)
	for range cap(r.free) {
		r.free <- make([]byte, m.ChunkBytes)
	}
	busy := make(chan struct{}, lanes)
	r.wg.Go(func() {
		for i := range replica.ChunkCount(m.Bytes, m.ChunkBytes) {
			var b []byte
			select {
			case b = <-r.free:
			case <-r.ctx.Done():
				return
			}
			got := make(chan chunk, 1)
			r.queue <- got // there are no more of them than buffers
			busy <- struct{}{}
			r.wg.Go(func() {
				defer func() { <-busy }()
				var c chunk
				c.b, c.err = s.read(i, b)
				got <- c
			})
		}
	})
	return r
}

// next gives chunk i, the one behind the last. It may be used until the next call.
func (r *reading) next(i int, _ []byte) ([]byte, error) {
	if i != r.at {
		return nil, fmt.Errorf("chunk %d is asked for, %d comes next", i, r.at)
	}
	r.at++
	if r.last != nil {
		r.free <- r.last[:cap(r.last)]
	}
	select {
	case got := <-r.queue:
		c := <-got
		r.last = c.b
		return c.b, c.err
	case <-r.ctx.Done():
		return nil, context.Cause(r.ctx)
	}
}

// close ends what is read ahead, and waits for it.
func (r *reading) close() {
	r.stop(nil)
	r.wg.Wait()
}
