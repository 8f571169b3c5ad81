package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestLimitFollowsWhatLives(t *testing.T) {
	for live, want := range map[uint64]int64{0: leastMemory, 40 << 20: leastMemory, 80 << 20: 140 << 20, 160 << 20: 240 << 20, 400 << 20: 540 << 20, 4 << 30: memoryLimit, math.MaxUint32: memoryLimit} {
		if got := limitFor(live); got != want {
			t.Errorf("%d MiB live: limit %d MiB, want %d", live>>20, got>>20, want>>20)
		}
	}
}

// TestTheCollectorIsPaced: each collection sets the limit for what it found alive, up and down.
func TestTheCollectorIsPaced(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(-1)
	end := paceCollector()
	defer func() {
		end()
		debug.SetMemoryLimit(before)
	}()
	await := func(ok func(int64) bool) bool {
		for range 1000 {
			runtime.GC()
			if ok(debug.SetMemoryLimit(-1)) {
				return true
			}
			runtime.Gosched()
		}
		return false
	}
	large := make([]byte, 256<<20) // never written: it takes no memory
	if !await(func(n int64) bool { return n >= limitFor(256<<20) }) {
		t.Errorf("limit %d MiB with 256 MiB alive", debug.SetMemoryLimit(-1)>>20)
	}
	runtime.KeepAlive(large) // and from here on it is not
	if !await(func(n int64) bool { return n < limitFor(256<<20) }) {
		t.Errorf("limit %d MiB once it is gone", debug.SetMemoryLimit(-1)>>20)
	}
}
