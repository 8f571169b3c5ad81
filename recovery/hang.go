package recovery

import (
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// Pulse follows the step word of one rank: how long its steps take, and for how long nothing has moved. It is fed with the
// time since any fixed moment, as Leader is.
type Pulse struct {
	word     replica.Word
	since    time.Duration // since when it has not changed
	measured bool          // step is when its number last rose
	step     time.Duration
	spans    [8]time.Duration
	count    int           // of spans, ever
	paused   time.Duration // until then it may stand still
	stands   bool          // it has said that it stands still, and not yet that it goes on
}

// HangLimits say how long a rank may stand still in an open epoch.
type HangLimits struct {
	Factor int           // times the longest of its last steps
	Least  time.Duration // at least this
	First  time.Duration // until it has made two steps in the epoch: compilation, the first batch
}

// Look takes a look at the rank's step word.
func (p *Pulse) Look(now time.Duration, w replica.Word) {
	switch {
	case w.Epoch() != p.word.Epoch():
		*p = Pulse{word: w, since: now, paused: p.paused}
	case w != p.word:
		if w.Step() > p.word.Step() {
			if p.measured {
				p.spans[p.count%len(p.spans)] = now - p.step
				p.count++
			}
			p.measured, p.step = true, now
		}
		p.word, p.since = w, now
	}
}

// Pause says that the rank may stand still for so long: evaluation, compilation, loading. Zero ends a pause, and what it took
// counts for nothing, also where the next step is seen before the word that ends it.
func (p *Pulse) Pause(now, most time.Duration) {
	p.measured = false
	if p.paused = now + most; most == 0 {
		p.since = now
	}
	p.stands = most > 0
}

// Stands tells whether the rank stands still on purpose. It outlasts the time that was allowed: a rank that waits for the others, to have
// its step committed, may be taken for a hang with them, and is told here by a pause of no length.
func (p *Pulse) Stands() bool { return p.stands }

// Still is for how long the rank has not moved; zero while it pauses on purpose, and before anybody has looked.
func (p *Pulse) Still(now time.Duration) time.Duration {
	if p.word == 0 || now < p.paused {
		return 0
	}
	return now - p.since
}

// Pace is the longest of the rank's last steps; zero until it has made two in the epoch.
func (p *Pulse) Pace() (longest time.Duration) {
	if p.count >= 2 {
		for _, s := range p.spans {
			longest = max(longest, s)
		}
	}
	return longest
}

// Hung tells whether the rank has stood still for longer than it may.
func (p *Pulse) Hung(now time.Duration, l HangLimits) bool {
	if p.word == 0 || now < p.paused {
		return false
	}
	limit := l.First
	if p.count >= 2 {
		limit = l.Least
		for _, s := range p.spans {
			limit = max(limit, time.Duration(l.Factor)*s)
		}
	}
	return now-p.since > limit
}

// laggards are the ranks that are furthest behind in the open epoch, of those that were heard of and have not left; the others wait for them.
// trains counts all of them, and stuck tells that each stands still for longer than it may.
func (kn *known) laggards(in *plan.Input) (behind []replica.RankReport, trains int, stuck bool) {
	lowest, hung := uint64(0), 0
	for r := range kn.job.Ranks {
		rep, ok := kn.trains(in, replica.Rank(r))
		if !ok {
			continue
		}
		trains++
		if rep.Hung {
			hung++
		}
		switch at := reached(rep.Live); {
		case len(behind) == 0 || at < lowest:
			behind, lowest = []replica.RankReport{rep}, at
		case at == lowest:
			behind = append(behind, rep)
		}
	}
	return behind, trains, trains > 0 && hung == trains
}

// trains is what is known of a rank that trains in the open epoch. Its node sees its steps whether or not its process has attached again since
// the daemon started anew: one that is stopped never does.
func (kn *known) trains(in *plan.Input, r replica.Rank) (replica.RankReport, bool) {
	rep := in.Said()[r]
	if rep == nil || !rep.Alive || rep.Left || rep.Live.Epoch() != kn.job.Epoch || rep.Incarnation != kn.job.Ranks[r].Incarnation ||
		in.Record().Vacant(r) {
		return replica.RankReport{}, false
	}
	return *rep, true
}

// left tells whether a rank has finished in the open epoch. Its process may have ended since, and its daemon be away: nothing but a fault takes
// that word back.
func (kn *known) left(r replica.Rank) bool {
	rep := kn.own()[r]
	return rep != nil && rep.Left && rep.Live.Epoch() == kn.job.Epoch
}

// anyLeft tells whether some rank has finished in the open epoch.
func (kn *known) anyLeft() bool {
	for r := range kn.job.Ranks {
		if kn.left(replica.Rank(r)) {
			return true
		}
	}
	return false
}

// standStill are the ranks that are named because they stand still: those that a signal has stopped; where there are none, those that are furthest
// behind, unless the others are no further, as in a long step. stuck is laggards'.
func (kn *known) standStill(in *plan.Input, now time.Duration) (still []replica.RankReport, stuck bool) {
	behind, _, stuck := kn.laggards(in)
	for r := range kn.job.Ranks {
		if rep, ok := kn.trains(in, replica.Rank(r)); ok && rep.Halted && kn.stillFor(rep, now) >= stands {
			still = append(still, rep)
		}
	}
	if len(still) > 0 {
		return still, stuck
	}
	for _, rep := range behind {
		if !rep.Stopped && (rep.Hung || len(behind) < len(kn.job.Ranks) && kn.stillFor(rep, now) >= stands) {
			still = append(still, rep)
		}
	}
	return still, stuck
}

// stillFor is for how long nothing of a rank's process has changed.
func (kn *known) stillFor(rep replica.RankReport, now time.Duration) time.Duration {
	s := kn.signs[rep.Rank]
	if s.of != rep.Incarnation {
		return 0
	}
	return now - s.at
}

// reached orders step words by how far a rank has come: IDLE is the end of a step.
func reached(w replica.Word) uint64 {
	phase := uint64(w.Phase())
	if w.Phase() == replica.Idle {
		phase = 3
	}
	return uint64(w.Step())<<2 | phase
}
