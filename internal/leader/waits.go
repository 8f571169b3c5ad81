package leader

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

const (
	waitSaid  = 2 * time.Second // a commit that some node has answered for so long, and others have not, is logged with their names
	waitAgain = time.Minute     // once more so often while it waits for the same nodes
	waitSteps = 3               // times the cadence: a commit that is behind by more is no ordinary one, and status says whom it waits for
	riskSteps = 10              // times the cadence: beyond as many steps since the commit, the log has what one more fault may cost
)

const (
	busyTick = 20 * time.Millisecond  // while something is led that waits for a time
	idleTick = 200 * time.Millisecond // for what no event announces otherwise
	restTick = time.Second            // while another node leads, or none
)

// clock ticks as often as a leader has to look at what no event announces.
type clock struct {
	*time.Ticker
	every time.Duration
}

func newClock() *clock { return &clock{time.NewTicker(idleTick), idleTick} }

// follow takes in what the leader waits for. One without jobs has nothing that waits for a time.
func (c *clock) follow(l *Leader) {
	every := restTick
	if l.active {
		every = idleTick
	}
	if len(l.leaving) > 0 || l.proposals.wait() || l.operators.Busy() {
		every = busyTick
	}
	for _, led := range l.jobs {
		if led.job.Phase != replica.Ended {
			every = busyTick
		}
	}
	if c.every != every {
		c.every = every
		c.Reset(every)
	}
}

// waits is since when the commit of a job waits, and what was said of it. Owned by the leader.
type waits struct {
	at    replica.Position // that is committed
	since time.Duration    // when a candidate beyond it was first answered, also one that has lapsed since; zero: none was
	names string           // that were logged last, and when
	said  time.Duration
	risk  replica.Step // that was logged last; 0: none since the last commit
}

// waitsFor says who holds up the commit of a job, and which of them the leader does not hear.
func (l *Leader) waitsFor(led *ledJob) []string {
	out := led.committer.Waiting()
	for _, n := range led.committer.Awaited() {
		if _, known := l.view.Nodes[n]; known && l.links.of[n] == nil {
			out = append(out, fmt.Sprintf("node %s: its daemon has no link to the leader", n))
		}
	}
	return out
}

// longWait tells whether the commit of a job has waited for long enough that it is no ordinary one: each commit waits for each part for a moment.
func (led *ledJob) longWait(now time.Duration) bool {
	w := led.waits
	return led.candidate.Position.Step <= liveStep(led) && uncommitted(led) > waitSteps*lock.Cadence(led.job) ||
		w.at == led.job.Position && w.since != 0 && now-w.since >= waitSaid
}

// uncommitted is how many steps one more fault may cost: those that ranks have made since the commit.
func uncommitted(led *ledJob) replica.Step {
	live := liveStep(led)
	return live - min(live, led.job.Position.Step)
}

// liveStep is the newest step that a rank has made in the job's epoch.
func liveStep(led *ledJob) replica.Step {
	var live replica.Step
	for _, r := range led.reports {
		live = max(live, plan.Made(led.job, led.job.Epoch, r.Ranks))
	}
	return live
}

// risky tells whether so many steps since the commit are worth saying.
func risky(job *replica.Job, steps replica.Step) bool {
	return job.Phase == replica.Open && steps > riskSteps*lock.Cadence(job)
}

// watch logs a commit that waits, and how much one more fault may cost: first when it is more than usual, then each time it has doubled.
func (l *Leader) watch(led *ledJob) {
	if led.job.Phase != replica.Open {
		led.waits = waits{}
		return
	}
	w, now := &led.waits, l.now()
	if w.at != led.job.Position {
		w.at, w.since = led.job.Position, 0
	}
	if w.since == 0 && led.committer.Started() {
		w.since = now
	}
	steps := uncommitted(led)
	switch {
	case !risky(led.job, steps):
		w.risk = 0
	case w.risk == 0 || steps >= 2*w.risk:
		w.risk = steps
		l.log.AtRisk(led.job, steps, l.waitsFor(led))
	}
	if w.since == 0 || now-w.since < waitSaid || !led.committer.Started() {
		return
	}
	awaited := led.committer.Awaited()
	slices.Sort(awaited)
	names := make([]string, len(awaited))
	for i, n := range awaited {
		names[i] = string(n)
	}
	if all := strings.Join(names, ","); all != w.names || now-w.said >= waitAgain {
		w.names, w.said = all, now
		l.log.CommitWaits(led.job, names, steps, now-w.since, l.waitsFor(led))
	}
}
