package lock

import "github.com/replicad/replicad/replica"

const (
	leadTrusted = 64 // steps of lead that one late answer is believed at once; beyond, it doubles the lead
	leadNamings = 8  // candidates of which it is known at which step they were named
)

// lead is how far above the newest live step a candidate is named: as far as ranks come while nodes hear of it. It is measured, candidate by
// candidate, since a candidate that ranks have passed when they hear of it is captured by nobody. Where the control plane is quick it is one step.
//
// It forgets: an outage is one late answer, and each commit afterwards takes back a half of what was not needed.
type lead struct {
	live    replica.Step // newest step of the open epoch that a rank is known to stand at
	steps   replica.Step
	namings []naming // newest last
}

// naming is a candidate with what was known of the ranks when it was named, and how far they had come where it was heard of last.
type naming struct {
	n      uint64
	live   replica.Step
	needed replica.Step // lead with which every node that answered would have heard in time
}

// reset forgets steps of another epoch, not what was measured.
func (l *lead) reset() { l.live, l.namings = 0, nil }

// sees takes word of how far a rank is.
func (l *lead) sees(live replica.Step) { l.live = max(l.live, live) }

// first is the first step that ranks have not passed when they hear of it, if they hear no later than before.
func (l *lead) first() replica.Step { return l.live + max(l.steps, 1) }

// named notes a candidate.
func (l *lead) named(n uint64) {
	l.namings = append(l.namings, naming{n: n, live: l.live})
	l.namings = l.namings[max(0, len(l.namings)-leadNamings):]
}

// heard takes word of how far the ranks of a node were when it heard of candidate n; 0: it has none.
func (l *lead) heard(n uint64, at replica.Step) {
	if at == 0 {
		return
	}
	l.sees(at)
	for i, c := range l.namings {
		if c.n != n || c.live == 0 { // nobody knew then where the ranks were
			continue
		}
		need := at + 1 - min(at, c.live)
		if need > leadTrusted {
			need = min(need, max(leadTrusted, 2*l.steps))
		}
		l.namings[i].needed = max(c.needed, need)
		l.steps = max(l.steps, need)
	}
}

// committed takes back some of what candidate n did not need.
func (l *lead) committed(n uint64) {
	for _, c := range l.namings {
		if c.n == n && c.needed > 0 && c.needed < l.steps {
			l.steps -= (l.steps - c.needed + 1) / 2
		}
	}
}
