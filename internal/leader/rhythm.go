package leader

import (
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

const (
	rhythmKept  = 9    // commits that are looked at: eight spaces between them
	rhythmLeast = 4    // with fewer nothing is said
	rhythmEven  = 1.25 // times the cadence: commits that come more seldom have a reason
)

// rhythm is every how many steps a job commits lately, and what takes as long as that. It is given the pins and commits that its owner
// hears, with the time.
type rhythm struct {
	epoch   replica.Epoch
	commits []beat // newest last

	n    uint64                         // the candidate
	made map[replica.Part]time.Duration // when its maker pinned a part of it
	lag  time.Duration                  // when the first of them was pinned
	slow mirroring
}

// beat is a commit.
type beat struct {
	at, took time.Duration // took: from the first pin
	step     replica.Step
	slow     mirroring
}

// mirroring is how long a part took from its maker's pin to that of the mirror that was last.
type mirroring struct {
	part replica.Part
	node replica.NodeName
	took time.Duration
}

// pinned takes pins of the candidate.
func (r *rhythm) pinned(now time.Duration, c replica.Candidate, p replica.Pinned) {
	if p.Term != c.Term || p.N != c.N {
		return
	}
	if r.n != c.N || r.made == nil {
		r.n, r.made, r.lag, r.slow = c.N, map[replica.Part]time.Duration{}, now, mirroring{}
	}
	for _, h := range p.Parts {
		made, known := r.made[h.Part]
		switch {
		case !h.Mirror && !known:
			r.made[h.Part] = now
		case h.Mirror && known && now-made > r.slow.took:
			r.slow = mirroring{h.Part, p.Holder.Node, now - made}
		}
	}
}

// committed takes a commit of the candidate.
func (r *rhythm) committed(now time.Duration, c replica.Candidate, job *replica.Job) {
	if r.epoch != job.Epoch {
		*r = rhythm{epoch: job.Epoch, n: r.n, made: r.made, lag: r.lag, slow: r.slow}
	}
	b := beat{at: now, step: job.Position.Step}
	if r.n == c.N && r.made != nil && c.Generation == job.Committed {
		b.took, b.slow = now-r.lag, r.slow
	}
	r.commits = append(r.commits, b)
	r.commits = r.commits[max(0, len(r.commits)-rhythmKept):]
}

// status is what there is to say; nil: too little is known.
func (r *rhythm) status(job *replica.Job) *control.CommitStatus {
	if r.epoch != job.Epoch || len(r.commits) < rhythmLeast {
		return nil
	}
	first, last, spaces := r.commits[0], r.commits[len(r.commits)-1], len(r.commits)-1
	steps := last.step - first.step
	step := (last.at - first.at) / time.Duration(steps)
	s := &control.CommitStatus{Count: spaces, Steps: steps, StepUS: step.Microseconds()}
	middle := func(of func(a, b beat) int) beat {
		sorted := slices.SortedFunc(slices.Values(r.commits[1:]), of)
		return sorted[len(sorted)/2]
	}
	mirror := middle(func(a, b beat) int { return int(a.slow.took - b.slow.took) }).slow
	lag := middle(func(a, b beat) int { return int(a.took - b.took) }).took
	if s.LagUS = lag.Microseconds(); mirror.took > 0 {
		s.Slowest = &control.MirrorStatus{Part: mirror.part.String(), Node: mirror.node, TookUS: mirror.took.Microseconds()}
	}
	if s.Every() <= rhythmEven*float64(lock.Cadence(job)) {
		return s
	}
	switch {
	case mirror.took >= step:
		s.Why = fmt.Sprintf("%v takes %s to its mirror on node %s, a step takes %s", mirror.part, roughly(mirror.took), mirror.node, roughly(step))
	case lag >= step:
		s.Why = fmt.Sprintf("a commit takes %s after the first seal, a step takes %s", roughly(lag), roughly(step))
	}
	return s
}

// roughly is a time in two or three digits.
func roughly(d time.Duration) string {
	unit := time.Microsecond
	for 100*unit < d {
		unit *= 10
	}
	return d.Round(unit).String()
}
