package sim

import (
	"fmt"
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
)

// In one episode of four a tenth of a daemon's probes stay without an answer, as if each packet of one had been lost. One that comes twice,
// late or after the next does nothing: an answer counts for the question that it names.
const lossy, lost = 0.25, 0.1

// clock is a machine's wall clock, as one daemon reads it. In one episode of four it jumps, up to a year either way: whenever it is read, now
// and then. What waits does so by the monotonic clock, which never jumps.
type clock struct {
	*dice
	jumps bool

	mu sync.Mutex // guards by
	by time.Duration
}

const (
	jumpy  = 0.25 // of the episodes
	jumped = 0.1  // of the reads
	year   = 365 * 24 * time.Hour
)

func (d *daemon) clock() *clock {
	return &clock{dice: d.m.w.dice("clock of "+string(d.m.name), d.life()), jumps: d.m.w.dice("clocks", 0).chance() < jumpy}
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jumps && c.chance() < jumped {
		c.by = c.below(2*year) - year
		report.happens("clocks jumped")
	}
	return time.Now().Add(c.by)
}

// loses tells of each probe of a daemon whether it is lost: nodes are probed in no order, so each has dice of its own.
func (d *daemon) loses() func(replica.NodeName) bool {
	if d.m.w.dice("probes", 0).chance() >= lossy {
		return func(replica.NodeName) bool { return false }
	}
	of := map[replica.NodeName]*dice{}
	return func(to replica.NodeName) bool {
		if of[to] == nil {
			of[to] = d.m.w.dice(fmt.Sprintf("probes of %s to %s", d.m.name, to), d.life())
		}
		if of[to].chance() >= lost {
			return false
		}
		report.happens("probes lost")
		return true
	}
}
