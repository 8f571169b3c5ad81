package catalog

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
)

// TestAnAbsentServerIsToldAfterItsPatience: what a store has asked for twenty seconds is not asked again. What it answers at once with a doubt is.
func TestAnAbsentServerIsToldAfterItsPatience(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, each := range []time.Duration{20 * time.Second, 0} {
			m, asked := memory.New(), 0
			m.Before = func(memory.Call) error {
				asked++
				time.Sleep(each) // of the bubble
				return store.ErrDoubtful
			}
			began := time.Now()
			_, err := New(m, Options{}).List(context.Background(), "lm")
			if took := time.Since(began); !errors.Is(err, store.ErrDoubtful) || took > 21*time.Second || each == 0 && asked != objects.Tries {
				t.Errorf("calls of %v: %v after %v and %d requests", each, err, took, asked)
			}
		}
	})
}
