package memory

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

// TestSuite: the store in memory keeps the contract, so that what passes over it says something of the others.
func TestSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Bed {
		s := New()
		s.Now, s.Least = time.Now, 16<<10
		return storetest.Bed{
			Open: func(testing.TB) store.Store { return s },
			Raw:  func(_ testing.TB, key string, b []byte) { s.raw(key, b) },
			Outside: func(testing.TB) func() map[string]string {
				return func() map[string]string { return map[string]string{"there": "is no outside"} }
			},
		}
	})
}

// raw puts an object without looking at its key.
func (s *Store) raw(key string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = object{b: b, modified: s.tickLocked(), version: "raw"}
}
