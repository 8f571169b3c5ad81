package main

import (
	"os"
	"runtime"
	"runtime/debug"
	gometrics "runtime/metrics"
	"sync/atomic"
)

const (
	// memoryLimit is what a daemon takes for itself, in bytes, before its collector works harder and gives memory back; arenas are not among it.
	// Above it nothing fails. GOMEMLIMIT says otherwise.
	memoryLimit = 1 << 30
	leastMemory = 128 << 20 // below this the collector works as Go's default has it
)

// limitFor is the limit of a daemon in which so many bytes live: a quarter more, and some. Go's default lets a daemon grow to twice what lives
// before it collects, and keeps that: what one user's processes may have it hold would count twice.
func limitFor(live uint64) int64 {
	return int64(min(max(live+live/4+40<<20, leastMemory), memoryLimit))
}

// paceCollector has the limit follow what lives, after each collection, until end. GOMEMLIMIT, where it is set, stands.
func paceCollector() (end func()) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	var over atomic.Bool
	last := int64(leastMemory)
	debug.SetMemoryLimit(last)
	live := []gometrics.Sample{{Name: "/gc/heap/live:bytes"}}
	type collected struct{ _ [16]byte } // one that is collected each time
	var again func(*collected)
	again = func(c *collected) {
		if over.Load() {
			return
		}
		gometrics.Read(live)
		if next := limitFor(live[0].Value.Uint64()); next > last || next < last-last/8 {
			last = next
			debug.SetMemoryLimit(next)
		}
		runtime.SetFinalizer(c, again)
	}
	runtime.SetFinalizer(new(collected), again)
	return func() { over.Store(true) }
}
