package lock

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// maxWaits is how many of the things that a commit waits for are said one by one: it may be each part of thousands of ranks.
const maxWaits = 64

// waits is what a commit waits for. It is made for who asks: to say it of each part costs more than to count the parts.
type waits struct {
	lines   []string
	unsaid  int                // further lines
	nodes   []replica.NodeName // whose answers it waits for
	named   map[replica.NodeName]bool
	missing []replica.Missing // at most maxWaits
}

// say notes what the commit waits for. A nil w notes nothing.
func (w *waits) say(format string, args ...any) {
	switch {
	case w == nil:
	case len(w.lines) >= maxWaits:
		w.unsaid++
	default:
		w.lines = append(w.lines, fmt.Sprintf(format, args...))
	}
}

// await notes whom the commit waits for, and for what.
func (w *waits) await(m replica.Missing, format string, args ...any) {
	if w == nil {
		return
	}
	w.say(format, args...)
	if len(w.missing) < maxWaits {
		w.missing = append(w.missing, m)
	}
	if !w.named[m.Node] {
		w.named[m.Node] = true
		w.nodes = append(w.nodes, m.Node)
	}
}

// waits says what holds the commit up, until the next event.
func (c *Committer) waits() *waits {
	if c.told != nil {
		return c.told
	}
	w := &waits{named: map[replica.NodeName]bool{}}
	c.told = w
	switch {
	case c.job == nil || c.job.Phase != replica.Open:
	case len(c.pending) > 0:
		w.say("the outcome of a proposal")
	case c.refused:
		w.say("news after a refused proposal")
	case c.heard.waits(c.job):
		for _, n := range c.heard.silent(c.job, maxWaits) {
			w.say("node %s: no report to this leader yet, which names a candidate once it has heard where the ranks are", n)
			w.nodes = append(w.nodes, n)
		}
	case c.live:
		for i := range c.tally.parts {
			if !c.tally.parts[i].whole {
				c.tally.part(i, w)
			}
		}
	}
	return w
}

// Waiting says who holds the commit of the candidate up.
func (c *Committer) Waiting() []string {
	w := c.waits()
	out := slices.Clone(w.lines)
	if w.unsaid > 0 {
		out = append(out, fmt.Sprintf("and %d more parts", w.unsaid))
	}
	return out
}

// Awaited names the nodes whose answers the commit of the candidate waits for.
func (c *Committer) Awaited() []replica.NodeName { return slices.Clone(c.waits().nodes) }

// Missing lists the parts that the commit of the candidate waits for, at most maxWaits of them. They are not the caller's to change.
func (c *Committer) Missing() []replica.Missing { return c.waits().missing }
