package sim

import (
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"
)

// dice are one actor's: what it draws hangs on the seed, its name and how often it drew before, and on nothing that others do meanwhile.
// Invariant: no two actors share dice, or the order of what happens at one moment would change what happens later.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

// dice are those of an actor, in one of its lives.
func (w *world) dice(actor string, life uint64) *dice {
	h := fnv.New64a()
	h.Write([]byte(actor))
	return &dice{rng: rand.New(rand.NewPCG(w.seed^h.Sum64(), life))}
}

// delay is some milliseconds, of which no two are equal: what happens at one moment happens in no order that a seed could fix.
func (d *dice) delay() time.Duration { return d.below(8 * time.Millisecond) }

func (d *dice) below(most time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.rng.Int64N(int64(most)))
}

// chance is a number from 0 to 1.
func (d *dice) chance() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.Float64()
}
