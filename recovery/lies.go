package recovery

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	doubtFor  = 10               // times holder_grace: a plan without these copies waits once that long for other holders, and another part may be found after it
	liesKnown = 10 * time.Minute // for which what a node was sent counts
	liesAgain = 10 * time.Second // within how long a node that still needs the part is sent wrong bytes again
	maxLies   = 256              // copies that somebody was sent wrong bytes of
)

// lies are wrong bytes that nodes were sent, though those who sent them find their copies good. Whose fault that is one receiver can't tell; two
// can. Learned by one leader, and found again by the next.
type lies struct {
	of    map[theCopy]map[replica.NodeName]map[replica.NodeName]wrong // by receiver and sender
	doubt map[doubt]time.Duration                                     // copies that don't count until then
	found map[doubt]time.Duration                                     // when a node's wait for a good copy had lasted too long
}

// theCopy is a part of a generation under one root.
type theCopy struct {
	part replica.Part
	gen  replica.Generation
	root replica.Digest
}

// wrong is when a sender's bytes were wrong first and last.
type wrong struct{ first, last time.Duration }

// doubt is a node's copy.
type doubt struct {
	theCopy
	node replica.NodeName
}

func newLies() lies {
	return lies{make(map[theCopy]map[replica.NodeName]map[replica.NodeName]wrong), make(map[doubt]time.Duration), make(map[doubt]time.Duration)}
}

// renewed forgets what was said of a node, and by it, in an earlier session.
func (l *lies) renewed(n replica.NodeName) {
	for _, by := range l.of {
		delete(by, n)
		for _, senders := range by {
			delete(senders, n)
		}
	}
	maps.DeleteFunc(l.found, func(d doubt, _ time.Duration) bool { return d.node == n })
	maps.DeleteFunc(l.doubt, func(d doubt, _ time.Duration) bool { return d.node == n })
}

// doubted tells which copies don't count; nil: all do.
func (l *lies) doubted(now time.Duration) func(replica.Holder, replica.Held) bool {
	maps.DeleteFunc(l.doubt, func(_ doubt, until time.Duration) bool { return now >= until })
	if len(l.doubt) == 0 {
		return nil
	}
	known := l.doubt
	return func(h replica.Holder, held replica.Held) bool {
		_, ok := known[doubt{theCopy{held.Part, held.Generation, held.Root}, h.Node}]
		return ok
	}
}

// doubts tells whether a copy does not count because several nodes were sent wrong bytes of it.
func (in *PlanInput) doubts(h replica.Holder, held replica.Held) bool {
	return in.Doubted != nil && in.Doubted(h, held)
}

// learnCorrupt takes a node's word that it was sent wrong bytes of a planned part.
func (l *Leader) learnCorrupt(ev Corrupt) {
	if l.job == nil || l.job.Plan == nil || l.job.Phase != replica.Planned || ev.Generation != l.job.Plan.Generation || ev.From == ev.By {
		return
	}
	if ev.Part.Kind == replica.FrozenPart { // it lies beside the part that binds it
		ev.Part.Kind = replica.ReplicatedPart
	}
	src, ok := l.job.Plan.Source(ev.Part)
	if !ok {
		return
	}
	c := theCopy{ev.Part, ev.Generation, src.Root}
	if l.lies.of[c] == nil {
		if len(l.lies.of) >= maxLies {
			return
		}
		l.lies.of[c] = make(map[replica.NodeName]map[replica.NodeName]wrong)
	}
	by := l.lies.of[c]
	if by[ev.From] == nil {
		by[ev.From] = make(map[replica.NodeName]wrong)
	}
	w, known := by[ev.From][ev.By]
	k := lieClock(l.job.Epoch, ev)
	if known && l.now-w.last > liesAgain {
		l.Clocks.End(k)
	}
	w.first = l.Clocks.Since(l.now, k)
	w.last = l.now
	by[ev.From][ev.By] = w
}

// lieClock is that of wrong bytes of a part which one node was sent by another.
func lieClock(e replica.Epoch, ev Corrupt) replica.Clock {
	by := fnv.New64a()
	by.Write([]byte(ev.By))
	return replica.Clock{Kind: clockLied, Epoch: e, Node: ev.From, Part: ev.Part, Of: by.Sum64()}
}

// waitsForGoodCopies are the nodes to which all holders of a planned part have sent wrong bytes, though they find their copies good. Holders have
// as long to read these again as the rank's parts may take to come.
func (l *Leader) waitsForGoodCopies(in *PlanInput, now time.Duration) (out []waiting) {
	p := l.job.Plan
	for c, by := range l.lies.of {
		src, ok := p.Source(c.part)
		if !ok || src.Tier == replica.Disk || c.gen != p.Generation || c.root != src.Root {
			continue
		}
		for _, n := range slices.Sorted(maps.Keys(by)) {
			if since, last, all := l.allLied(in, c, n); all && now-last <= liesAgain {
				r := l.receiver(c.part, n)
				grown := time.Duration(0)
				if rep := in.said()[r]; rep != nil {
					grown = millis(rep.LoadMS)
				}
				out = append(out, waiting{kind: AwaitGoodCopy, rank: r, node: n, since: since, until: since + l.bound(AwaitGoodCopy) + grown, what: fmt.Sprintf("%v of %v", c.part, c.gen)})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b waiting) int { return int(a.until - b.until) })
	return out
}

// allLied tells whether a node was sent wrong bytes by all holders of a part but itself, since when, and when again.
func (l *Leader) allLied(in *PlanInput, c theCopy, to replica.NodeName) (since, last time.Duration, all bool) {
	holders := in.holding(c.part, c.gen, c.root)
	for _, h := range holders {
		w, known := l.lies.of[c][to][h.Node]
		if h.Node == to || !known || l.now-w.last > liesKnown {
			return 0, 0, false
		}
		since, last = max(since, w.first), max(last, w.last)
	}
	return since, last, len(holders) > 0
}

// receiver is the rank on a node that is to load a part, or the first that has to anywhere: the node mirrors it.
func (l *Leader) receiver(part replica.Part, n replica.NodeName) replica.Rank {
	for r, c := range l.job.Ranks {
		if c.Node == n && slices.Contains(l.partsOf(replica.Rank(r)), part) {
			return replica.Rank(r)
		}
	}
	return loaderOf(l.job.Layout, part)
}

// blameCopies ends the wait for a good copy. Where two nodes were sent wrong bytes by all, the copies don't count for a while, and the next plan
// takes what is left; what one node alone finds is the fault of the rank there. A mirror alone, which no rank waits for, is nobody's.
func (l *Leader) blameCopies(w waiting, f replica.Fault) {
	in, p := l.input(), l.job.Plan
	for c, by := range l.lies.of {
		if c.gen != p.Generation || fmt.Sprintf("%v of %v", c.part, c.gen) != w.what {
			continue
		}
		l.lies.found[doubt{c, w.node}] = l.now
		var found []replica.NodeName
		for _, n := range slices.Sorted(maps.Keys(by)) {
			if _, _, all := l.allLied(in, c, n); all && l.lies.found[doubt{c, n}] != 0 {
				found = append(found, n)
			}
		}
		f.Rank = w.rank
		f.Incarnation = l.job.Ranks[f.Rank].Incarnation
		if len(found) < 2 {
			if l.job.Ranks[w.rank].Node != w.node {
				return
			}
			f.Kind = l.elsewhere(w.rank)
			l.learnFault(f)
			return
		}
		for _, h := range in.holding(c.part, c.gen, c.root) {
			l.lies.doubt[doubt{c, h.Node}] = l.now + doubtFor*l.t.HolderGrace
		}
		f.Detail = fmt.Sprintf("what every holder sends of %s fails its digest on nodes %s, though they find their copies good: these don't count for %v", w.what, joined(found), doubtFor*l.t.HolderGrace)
		l.in = nil // what counts has changed
		l.learnFault(f)
	}
}

// doubtfulCopies says which copies don't count, for the reason of a plan; empty: all do.
func (in *PlanInput) doubtfulCopies(g replica.Generation) string {
	if in.Doubted == nil {
		return ""
	}
	var names []replica.NodeName
	for _, n := range slices.Sorted(maps.Keys(in.Reports)) {
		rep := in.Reports[n]
		if slices.ContainsFunc(rep.Parts, func(h replica.Held) bool { return h.Generation == g && in.Doubted(rep.Holder, h) }) {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" (the copies on %s were sent wrong to two nodes)", joined(names))
}
