package launchers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// idleAfter is how long a launcher is asked for no process until it is notified why. The leader gives others a second.
const idleAfter = 1500 * time.Millisecond

// idles notifies a launcher, once, what it waits for.
func (l *launcher) idles(job *replica.Job, now time.Time) {
	if l.idle.IsZero() || now.Sub(l.idle) < idleAfter || l.hello.Capacity == 0 { // another launcher starts the processes of that
		return
	}
	l.idle = time.Time{}
	if len(l.starts) == 0 {
		l.note(job.Epoch, whyIdle(job, int(l.hello.Capacity), l.hello.Spare))
	}
}

// whyIdle is what a launcher waits for that has been asked for no process.
func whyIdle(job *replica.Job, capacity int, spare bool) string {
	var without []replica.Rank
	on := map[replica.NodeName]int{}
	for r, c := range job.Ranks {
		if c.Incarnation == 0 || recovery.Vacated(job, replica.Rank(r)) {
			without = append(without, replica.Rank(r))
		} else {
			on[c.Node]++
		}
	}
	processes := "process is spare and starts"
	if capacity != 1 {
		processes = fmt.Sprintf("%d processes are spare and start", capacity)
	}
	if len(without) == 0 {
		return fmt.Sprintf("job %q runs already with all its ranks, on %s. This launcher's %s when a rank is lost. To run a second "+
			"job, give it another --job", job.Name, nodesOf(on), processes)
	}
	who := "other launchers start them, or this one is asked next"
	if spare {
		who = "this launcher is a spare, and is asked once no other one takes them"
	}
	return fmt.Sprintf("job %q waits for processes of %d of its %d ranks (rank %d first): %s", job.Name, len(without), len(job.Ranks),
		without[0], who)
}

// idleNodes bounds the nodes that a message names.
const idleNodes = 8

func nodesOf(on map[replica.NodeName]int) string {
	var list []string
	for node, ranks := range on {
		list = append(list, fmt.Sprintf("%s (%d)", node, ranks))
	}
	slices.Sort(list)
	if more := len(list) - idleNodes; more > 0 {
		list = append(list[:idleNodes], fmt.Sprintf("%d more", more))
	}
	return strings.Join(list, ", ")
}
