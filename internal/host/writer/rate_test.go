package writer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
)

// All writes of a node share its rate; an end is waited for by nobody.
func TestARateIsShared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, began := NewRate(1<<20), time.Now()
		var writes sync.WaitGroup
		for range 4 {
			writes.Go(func() {
				for range 8 {
					if err := r.wait(t.Context(), 512<<10); err != nil {
						t.Error(err)
					}
				}
			})
		}
		writes.Wait()
		if took := time.Since(began); took != 31*500*time.Millisecond {
			t.Errorf("16 MiB took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.wait(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("at the end: %v", err)
		}
		began = time.Now()
		for _, r := range []*Rate{nil, NewRate(0)} {
			if err := r.wait(t.Context(), 1<<40); err != nil || time.Since(began) != 0 {
				t.Errorf("without a bound: %v, %v", err, time.Since(began))
			}
		}
	})
}
