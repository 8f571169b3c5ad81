package exposure

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	// Cadences is how many cadences may lie between the live step and the commit before it is worth saying.
	Cadences = 3
	// least is how much time the steps must be worth: commits of steps of milliseconds are a few behind, and nobody misses them.
	least = 5 * time.Second
	// leaves is for how long a leader that is heard is left to say what a commit waits for: it knows, and the node does not.
	leaves = 15 * time.Second
	// misses is how long an election may take.
	misses = 5 * time.Second
	// calm is for how long a price must be small, at the least, to be over.
	calm = 30 * time.Second
	// samples bounds what is remembered of when steps were made, one a second.
	samples = 600
	each    = time.Second
)

// Seen is what a node knows of a job.
type Seen struct {
	Open            bool // the epoch is
	Epoch           replica.Epoch
	Live, Committed replica.Step // the newest step that a rank here has made; the newest commit that was heard of
	Cadence         replica.Step
	// Leader is for how long no leader has been heard; zero: one is.
	Leader time.Duration
	// Remedy says what it takes to have one.
	Remedy string
}

// Gap is how many steps a fault would cost, by what is known.
func (s Seen) Gap() replica.Step { return s.Live - min(s.Live, s.Committed) }

// Wide tells whether a gap is worth saying: it is above three cadences.
func Wide(gap, cadence replica.Step) bool { return gap > Cadences*max(cadence, 1) }

// made is when a step was first seen.
type made struct {
	step replica.Step
	at   time.Time
}

// Watch finds that a fault would cost much. The node looks now and then. What it says is said once when that begins, again when the price has doubled,
// and once when it is over: not before it was small for as long as what it was worth, so that commits that take long are no news each time.
type Watch struct {
	epoch     replica.Epoch
	committed replica.Step
	steps     []made
	leader    time.Time // when a leader last had launchers print something

	peak  price        // since the last commit, where it was worth saying
	slow  int          // commits in a row before which it was
	began time.Time    // of a price that was said; zero: none was
	said  replica.Step // last
	worst price        // since then
	small time.Time    // since when it is small again; zero: it is not
}

// price is so many steps, which took so long.
type price struct {
	steps replica.Step
	worth time.Duration
}

// Told takes note that the leader has had launchers print something of the job.
func (w *Watch) Told(now time.Time) { w.leader = now }

// Look takes in what is known now. Line is what people are to read; empty: nothing.
func (w *Watch) Look(now time.Time, s Seen) (line string) {
	if !s.Open || s.Epoch != w.epoch {
		*w = Watch{epoch: s.Epoch, committed: s.Committed, leader: w.leader}
		return ""
	}
	if s.Committed != w.committed {
		line = w.commits(now, s)
	}
	w.remember(now, s)
	is := price{s.Gap(), w.worthOf(now, s.Committed)}
	if !Wide(is.steps, s.Cadence) || is.worth < least {
		if line == "" {
			line = w.isSmall(now, s)
		}
		return line
	}
	w.small = time.Time{}
	w.peak.atLeast(is)
	w.worst.atLeast(is)
	switch {
	case line != "":
	case w.began.IsZero() && !w.speaks(now, s, is):
	case !w.began.IsZero() && is.steps < 2*w.said:
	default:
		line = w.says(now, is.steps, is.worth, fmt.Sprintf("one more fault would cost %d steps, %v of work (committed %d, live %d): %s", is.steps, is.worth.Round(time.Second), s.Committed, s.Live, why(s)))
	}
	return line
}

func (p *price) atLeast(is price) {
	if is.steps > p.steps {
		*p = is
	}
}

// says takes note of what is said.
func (w *Watch) says(now time.Time, steps replica.Step, worth time.Duration, line string) string {
	if w.began.IsZero() {
		w.began, w.worst = now.Add(-worth), price{steps, worth}
	}
	w.said = steps
	return line
}

// speaks tells whether the node says it by itself: no leader is heard, or it has had its time to say what the commit waits for, and has said nothing.
// A leader that has says more each time it is twice as much.
func (w *Watch) speaks(now time.Time, s Seen, is price) bool {
	return s.Leader >= misses || is.worth >= leaves && now.Sub(w.leader) >= max(leaves, is.worth/2+leaves/2)
}

func why(s Seen) string {
	if s.Leader >= misses {
		return fmt.Sprintf("no leader has been heard for %v, so nothing is committed, and training goes on: %s", s.Leader.Round(time.Second), s.Remedy)
	}
	return "replicad status says what the commit waits for; training goes on"
}

// commits takes in a commit. One that came late is for the leader to explain; where each takes long, that is what a fault costs from now on.
func (w *Watch) commits(now time.Time, s Seen) (line string) {
	w.committed = s.Committed
	was := w.peak
	w.peak = price{}
	if was.steps == 0 {
		w.slow = 0
		return ""
	}
	if w.slow++; w.slow < 2 || !w.began.IsZero() {
		return ""
	}
	return w.says(now, was.steps, was.worth, fmt.Sprintf("a fault costs up to %d steps now, %v of work (committed %d, live %d): a commit takes long; replicad status says what it waits for", was.steps, was.worth.Round(time.Second), s.Committed, s.Live))
}

// isSmall takes in that a fault would cost little.
func (w *Watch) isSmall(now time.Time, s Seen) string {
	if w.small.IsZero() {
		w.small = now
	}
	if w.began.IsZero() {
		return ""
	}
	usual := w.worst.worth * time.Duration(Cadences*max(s.Cadence, 1)) / time.Duration(w.worst.steps)
	if now.Sub(w.small) < min(w.worst.worth, max(calm, usual)) {
		return ""
	}
	line := fmt.Sprintf("one more fault would cost %d %s again (committed %d, live %d); it was up to %d for %v", s.Gap(), map[bool]string{true: "step", false: "steps"}[s.Gap() == 1], s.Committed, s.Live, w.worst.steps, w.small.Sub(w.began).Round(time.Second))
	w.began, w.said, w.worst, w.slow = time.Time{}, 0, price{}, 0
	return line
}

// remember notes when a step was made.
func (w *Watch) remember(now time.Time, s Seen) {
	if n := len(w.steps); n == 0 || s.Live > w.steps[n-1].step && now.Sub(w.steps[n-1].at) >= each {
		w.steps = append(w.steps, made{s.Live, now})
	}
	for len(w.steps) > 1 && w.steps[1].step <= s.Committed {
		w.steps = w.steps[1:]
	}
	if len(w.steps) > samples { // the first one counts
		kept := w.steps[:0]
		for i := 0; i < len(w.steps); i += 2 {
			kept = append(kept, w.steps[i])
		}
		w.steps = kept
	}
}

// worthOf is how long ago the first step was made that is not committed.
func (w *Watch) worthOf(now time.Time, committed replica.Step) time.Duration {
	for _, m := range w.steps {
		if m.step > committed {
			return now.Sub(m.at)
		}
	}
	return 0
}
