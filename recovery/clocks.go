package recovery

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/replica"
)

// The kinds of clocks and measures of a job. Numbers are never given out anew.
const (
	clockGone    replica.ClockKind = iota + 1 // a node without a link; Of: its session
	clockMissed                               // a node that has not answered; Epoch: the closed one, where the job has something recorded on it
	clockVacant                               // a rank without a process; Of: who had it
	clockOffered                              // a rank that was offered to a node; Of: as Vacant
	clockAlone                                // nobody works at the job
	clockSeen                                 // a process; Of: its incarnation
	clockRegions                              // the question for the regions of a disputed state
	clockLied                                 // wrong bytes that a node was sent; Of: by whom
	clockMeeting                              // a rank, or a node, that holds others up at the rendezvous
	clockAsked                                // a growth; Of: how far its ranks are
	clockParted                               // all ranks have left
	clockCommit                               // a step that is committed, or with which an epoch was opened; Of: the step. Nodes know it themselves
	clockGap                                  // a part that a commit waits for
	clockShort                                // a job for which nobody offers a process
	clockAwaited                              // waits that people are told of
	clockWrote                                // the newest durable generation; Of: its step
	clockWriting                              // a durable write; Of: its number
	clockBegan                                // what durable writes are paced by
	clockUnread                               // durable generations that the next write waits for, as nobody has read them back

	measureSpace   // the longest time between two commits of an epoch
	measureSpaces  // the usual one
	measureStalled // steps above the commit that people were told of; Of: the step that is committed
	measureShort   // how often launchers were told that the job is short of processes
	measureAwaited // how often they were told whom it waits for
	measureCost    // of a durable write
	measureFaults  // since Began
	measureUnread  // how often people were told that writes wait for what is not read back

	clockRecovered // a recovery; Epoch: the closed one; Of: the newest step that had been committed
)

// measure tells whether what a kind reads does not go on with time.
func measure(k replica.ClockKind) bool { return k >= measureSpace && k <= measureUnread }

const (
	// listens is how long a leader listens before it hands out what clocks read: by then the nodes that link have said what they keep.
	listens = time.Second
	// settles is how long a clock must have run to be handed out: what is over within it nobody misses. Parts of each commit are missing for a while.
	settles    = 500 * time.Millisecond
	gapSettles = 2 * time.Second
	gapsHanded = 16 // at most: one that moves is enough for a commit to go on
)

// Clocks is since when each of a job's waits has lasted, and what was measured of it: the job's own, under whatever leader. A leader starts and ends
// the clocks that it sees; what nodes keep of an earlier one's goes on, unless this one has seen its end. It reads no time: its owner says it.
type Clocks struct {
	runs map[replica.Clock]time.Duration // since when, by what this leader has seen
	vals map[replica.Clock]uint64
	over map[replica.Clock]struct{} // ended under this leader: what nodes keep of it is of before

	base replica.Ledger                                       // the newest that some node keeps; without its readings
	told map[replica.Clock]map[replica.NodeName]time.Duration // by that one
	seen map[replica.Clock]map[replica.NodeName]time.Duration // by nodes themselves
	kept map[replica.Clock]uint64                             // measures of that one
}

// Learn takes a node's first word to this leader. Nothing has lasted for longer than most, if that is known.
func (c *Clocks) Learn(now time.Duration, from replica.NodeName, l replica.Ledger, most time.Duration) {
	if planted.Clocks {
		return
	}
	if most <= 0 {
		most = longest
	}
	if l.Compare(c.base) > 0 {
		c.base, c.told, c.kept = replica.Ledger{Era: l.Era, Term: l.Term, Seq: l.Seq}, nil, nil
	}
	if l.Compare(c.base) == 0 {
		for _, r := range l.Readings[:min(len(l.Readings), replica.MaxReadings)] {
			if measure(r.Clock.Kind) {
				put(&c.kept, r.Clock, max(c.kept[r.Clock], r.N))
				continue
			}
			noteWord(&c.told, r.Clock, from, now-min(millis(r.N), most))
		}
	}
	for _, r := range l.Own[:min(len(l.Own), replica.MaxReadings)] {
		if r.Clock.Kind == clockCommit { // the only one that a node knows by itself: of any other one that lies would move everything
			noteWord(&c.seen, r.Clock, from, now-min(millis(r.N), most))
		}
	}
}

func put[V any](m *map[replica.Clock]V, k replica.Clock, v V) {
	if *m == nil {
		*m = make(map[replica.Clock]V)
	}
	(*m)[k] = v
}

func noteWord(m *map[replica.Clock]map[replica.NodeName]time.Duration, k replica.Clock, from replica.NodeName, at time.Duration) {
	if (*m)[k] == nil {
		put(m, k, make(map[replica.NodeName]time.Duration, 1))
	}
	(*m)[k][from] = at
}

// before is since when a clock has run by what nodes say. Of what a leader handed out the middle one of their words counts, or the later of two: one
// that lies moves nothing. Of what they know themselves the oldest does: a daemon that was started since knows less.
func (c *Clocks) before(k replica.Clock) (at time.Duration, ok bool) {
	if _, over := c.over[k]; over {
		return 0, false
	}
	if words := c.told[k]; len(words) > 0 {
		all := slices.Sorted(maps.Values(words))
		at, ok = all[len(all)/2], true
	}
	for _, own := range c.seen[k] {
		if !ok || own < at {
			at, ok = own, true
		}
	}
	return at, ok
}

// At is since when a clock runs; ok is false where it does not, as far as this leader and the nodes know.
func (c *Clocks) At(k replica.Clock) (at time.Duration, ok bool) {
	at, ok = c.before(k)
	if own, runs := c.runs[k]; runs && (!ok || own < at) {
		return own, true
	}
	return at, ok
}

// Since is since when a clock runs. One that does not is started.
func (c *Clocks) Since(now time.Duration, k replica.Clock) time.Duration {
	if _, runs := c.runs[k]; !runs {
		put(&c.runs, k, now)
	}
	at, _ := c.At(k)
	return at
}

// End says that what a clock is of is over. If it comes again, it begins anew.
func (c *Clocks) End(k replica.Clock) {
	delete(c.runs, k)
	delete(c.vals, k)
	if _, over := c.over[k]; !over {
		put(&c.over, k, struct{}{})
	}
}

// endOwn is End of what this leader has seen begin: before that it may merely not have heard of it yet.
func (c *Clocks) endOwn(k replica.Clock) {
	_, runs := c.runs[k]
	if _, set := c.vals[k]; runs || set {
		c.End(k)
	}
}

// EndAll ends the clocks that are meant.
func (c *Clocks) EndAll(meant func(replica.Clock) bool) {
	for k := range c.all() {
		if meant(k) {
			c.End(k)
		}
	}
}

// endTold is EndAll of what an earlier leader handed out.
func (c *Clocks) endTold(meant func(replica.Clock) bool) {
	for k := range c.told {
		if meant(k) {
			c.End(k)
			delete(c.told, k)
		}
	}
}

// Measure is what was measured, by this leader or an earlier one: the most.
func (c *Clocks) Measure(k replica.Clock) uint64 {
	v := c.vals[k]
	if _, over := c.over[k]; !over {
		v = max(v, c.kept[k])
	}
	return v
}

// Set notes what was measured, instead of what was before.
func (c *Clocks) Set(k replica.Clock, v uint64) {
	c.End(k)
	put(&c.vals, k, v)
}

// SayShort tells whether the launchers of a job that is short of processes are to be told so now: after claim_timeout, and each time that has doubled.
// NotShort ends that.
func (c *Clocks) SayShort(now time.Duration, e replica.Epoch, claim time.Duration) bool {
	return c.Due(now, replica.Clock{Kind: clockShort, Epoch: e}, measureShort, claim)
}

func (c *Clocks) NotShort(e replica.Epoch) {
	c.endOwn(replica.Clock{Kind: clockShort, Epoch: e})
	c.endOwn(replica.Clock{Kind: measureShort, Epoch: e})
}

// SayAwaited tells whether people are to be told now whom the job waits for: once there is somebody, which takes claim_timeout, and each time that has
// doubled since.
func (c *Clocks) SayAwaited(now, claim time.Duration, waits bool) bool {
	is, times := replica.Clock{Kind: clockAwaited}, replica.Clock{Kind: measureAwaited}
	if !waits {
		c.endOwn(is)
		c.endOwn(times)
		return false
	}
	c.Since(now-claim, is)
	return c.Due(now, is, measureAwaited, claim)
}

// Due tells whether something that has lasted is to be said now: when it has lasted for least, and each time that has doubled. What an earlier leader
// has said is not said again.
func (c *Clocks) Due(now time.Duration, k replica.Clock, times replica.ClockKind, least time.Duration) bool {
	said := k
	said.Kind = times
	since, n := c.Since(now, k), c.Measure(said)
	if n > 16 || now-since < least<<n {
		return false
	}
	c.Set(said, max(n+1, uint64(bits.Len64(uint64((now-since)/max(least, 1))))))
	return true
}

// each calls fn for the clocks of a kind that run.
func (c *Clocks) each(kind replica.ClockKind, fn func(k replica.Clock, since time.Duration)) {
	for k := range c.runs {
		if k.Kind == kind {
			at, _ := c.At(k)
			fn(k, at)
		}
	}
	for k := range c.told {
		if _, twice := c.runs[k]; k.Kind == kind && !twice {
			if at, ok := c.At(k); ok {
				fn(k, at)
			}
		}
	}
}

// all are the clocks and measures that are known.
func (c *Clocks) all() map[replica.Clock]struct{} {
	all := make(map[replica.Clock]struct{}, len(c.runs)+len(c.vals)+len(c.told)+len(c.kept))
	for k := range c.runs {
		all[k] = struct{}{}
	}
	for k := range c.vals {
		all[k] = struct{}{}
	}
	for k := range c.told {
		all[k] = struct{}{}
	}
	for k := range c.kept {
		all[k] = struct{}{}
	}
	return all
}

// forget drops what is of an epoch before one.
func (c *Clocks) forget(before replica.Epoch) {
	old := func(k replica.Clock) bool { return k.Epoch != 0 && k.Epoch < before }
	maps.DeleteFunc(c.runs, func(k replica.Clock, _ time.Duration) bool { return old(k) && k.Kind != clockRecovered })
	maps.DeleteFunc(c.vals, func(k replica.Clock, _ uint64) bool { return old(k) })
	maps.DeleteFunc(c.kept, func(k replica.Clock, _ uint64) bool { return old(k) })
	maps.DeleteFunc(c.over, func(k replica.Clock, _ struct{}) bool { return old(k) })
	for _, words := range []map[replica.Clock]map[replica.NodeName]time.Duration{c.told, c.seen} {
		maps.DeleteFunc(words, func(k replica.Clock, _ map[replica.NodeName]time.Duration) bool {
			return old(k) && k.Kind != clockRecovered
		})
	}
}

// Readings is what the clocks read that have run for a while, the oldest first, and what was measured. What nodes keep that this leader has not come to
// yet is in it: it may be deposed before.
func (c *Clocks) Readings(now time.Duration) []replica.Reading {
	var clocks, measures []replica.Reading
	for k := range c.all() {
		if measure(k.Kind) {
			if v := c.Measure(k); v > 0 {
				measures = append(measures, replica.Reading{Clock: k, N: v})
			}
			continue
		}
		least := settles
		if k.Kind == clockGap {
			least = gapSettles
		}
		if at, ok := c.At(k); ok && now-at >= least {
			clocks = append(clocks, replica.Reading{Clock: k, N: uint64((now - at).Milliseconds())})
		}
	}
	byClock := func(a, b replica.Reading) int { return compareClocks(a.Clock, b.Clock) }
	ofRanks := func(k replica.ClockKind) int { // of which there may be thousands: they come last
		return min(1, bits.OnesCount64(uint64(1)<<k&(1<<clockVacant|1<<clockOffered|1<<clockSeen)))
	}
	slices.SortFunc(clocks, func(a, b replica.Reading) int {
		return cmp.Or(cmp.Compare(ofRanks(a.Clock.Kind), ofRanks(b.Clock.Kind)), cmp.Compare(b.N, a.N), byClock(a, b))
	})
	slices.SortFunc(measures, byClock)
	gaps := 0
	clocks = slices.DeleteFunc(clocks, func(r replica.Reading) bool {
		if r.Clock.Kind == clockGap {
			gaps++
		}
		return r.Clock.Kind == clockGap && gaps > gapsHanded
	})
	out := slices.Concat(measures, clocks)
	return out[:min(len(out), replica.MaxReadings)]
}

func compareClocks(a, b replica.Clock) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Rank, b.Rank),
		cmp.Compare(a.Part.Kind, b.Part.Kind), cmp.Compare(a.Part.Index, b.Part.Index), cmp.Compare(a.Of, b.Of))
}

// longest bounds what a node may say of a time.
const longest = 365 * 24 * time.Hour

func millis(n uint64) time.Duration {
	return time.Duration(min(n, uint64(longest/time.Millisecond))) * time.Millisecond
}
