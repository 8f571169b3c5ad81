package scrub

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/shm"
)

// What lies here, what is read of it, and in which order.
func TestReadingsOrder(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	copyOf := func(arena string, i int, first bool) readable {
		return readable{lain{arena, shm.Place{Kind: shm.Slot, Index: i}, 1}, 3, first}
	}
	old, committed, mirror := copyOf("a", 0, false), copyOf("a", 1, true), copyOf("b", 0, false)
	all := []readable{old, committed, mirror}
	s := readings{}
	now := began
	step := func(here []readable, want readable, chunk int) {
		t.Helper()
		at, from, ok := s.next(here, now)
		if !ok || here[at] != want || from != chunk {
			t.Fatalf("after %v: reads %v from chunk %d (%v), want %v from %d", now.Sub(began), here[at], from, ok, want, chunk)
		}
		s.read(here[at], from+2, now)
	}
	rests := func(here []readable) {
		t.Helper()
		if at, from, ok := s.next(here, now); ok {
			t.Fatalf("after %v: reads %v from chunk %d, want nothing", now.Sub(began), here[at], from)
		}
	}
	rests(all) // all of it is new
	now = now.Add(readAfter)
	step(all, committed, 0)
	step(all, committed, 2)
	step(all, old, 0)
	step(all, old, 2) // what has begun is ended
	step(all, mirror, 0)
	newer := copyOf("a", 2, true)
	all = append(all, newer)
	step(all, mirror, 2) // the newer one must lie first
	rests(all)
	now = now.Add(readAfter)
	step(all, newer, 0)
	reused := newer
	reused.count++
	all[3] = reused
	rests(all) // another copy in its place
	if len(s) != 4 {
		t.Errorf("%d copies are remembered, want the 4 that lie here", len(s))
	}
	s.read(newer, 3, now)
	if len(s) != 4 {
		t.Error("a copy that is gone came back")
	}
	now = began.Add(readAfter + readAgain)
	step(all, reused, 0) // never read
	step(all, reused, 2)
	step(all, committed, 0)
	step(all, committed, 2)
	step(all, old, 0)
}

// Every copy is read whole, however many there are, and none again before its time.
func TestReadingsReadsAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var here []readable
	for i := range 50 {
		here = append(here, readable{lain{"a", shm.Place{Kind: shm.PlaceKind(i % 3), Index: i}, 1}, 1 + rng.IntN(9), rng.IntN(2) == 0})
	}
	s, read, ended := readings{}, map[lain]int{}, map[lain]time.Time{}
	s.next(here, now)
	now = now.Add(readAfter)
	for end := now.Add(3 * readAgain); now.Before(end); now = now.Add(time.Second) {
		at, from, ok := s.next(here, now)
		if !ok {
			continue
		}
		c := here[at]
		if from != read[c.lain] {
			t.Fatalf("%v: from chunk %d, %d were read", c, from, read[c.lain])
		}
		if was := ended[c.lain]; from == 0 && !was.IsZero() && now.Sub(was) < readAgain {
			t.Fatalf("%v: again after %v", c, now.Sub(was))
		}
		to := min(from+1+rng.IntN(3), c.chunks)
		s.read(c, to, now)
		if read[c.lain] = to; to == c.chunks {
			read[c.lain], ended[c.lain] = 0, now
		}
	}
	if len(ended) != len(here) {
		t.Errorf("%d copies of %d were read whole", len(ended), len(here))
	}
}
