package recovery

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery/plan"
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

// learnCorrupt takes a node's word that it was sent wrong bytes of a planned part.
func (tr *trust) learnCorrupt(ev Corrupt) {
	kn := tr.known
	if kn.job == nil || kn.job.Plan == nil || kn.job.Phase != replica.Planned || ev.Generation != kn.job.Plan.Generation ||
		ev.From == ev.By {
		return
	}
	if ev.Part.Kind == replica.FrozenPart { // it lies beside the part that binds it
		ev.Part.Kind = replica.ReplicatedPart
	}
	src, ok := kn.job.Plan.Source(ev.Part)
	if !ok {
		return
	}
	c := theCopy{ev.Part, ev.Generation, src.Root}
	if tr.lies.of[c] == nil {
		if len(tr.lies.of) >= maxLies {
			return
		}
		tr.lies.of[c] = make(map[replica.NodeName]map[replica.NodeName]wrong)
	}
	by := tr.lies.of[c]
	if by[ev.From] == nil {
		by[ev.From] = make(map[replica.NodeName]wrong)
	}
	w, known := by[ev.From][ev.By]
	k := lieClock(kn.job.Epoch, ev)
	if known && kn.now-w.last > liesAgain {
		kn.clocks.End(k)
	}
	w.first = kn.clocks.Since(kn.now, k)
	w.last = kn.now
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
func (tr *trust) waitsForGoodCopies(in *plan.Input, now time.Duration) (out []waiting) {
	kn := tr.known
	p := kn.job.Plan
	for c, by := range tr.lies.of {
		src, ok := p.Source(c.part)
		if !ok || src.Tier == replica.Disk || c.gen != p.Generation || c.root != src.Root {
			continue
		}
		for _, n := range slices.Sorted(maps.Keys(by)) {
			if since, last, all := tr.allLied(in, c, n); all && now-last <= liesAgain {
				r := receiver(kn.job.Job, c.part, n)
				grown := time.Duration(0)
				if rep := in.Said()[r]; rep != nil {
					grown = millis(rep.LoadMS)
				}
				out = append(out, waiting{kind: AwaitGoodCopy, rank: r, node: n, since: since, until: since + kn.bound(AwaitGoodCopy) +
					grown, what: fmt.Sprintf("%v of %v", c.part, c.gen)})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b waiting) int { return int(a.until - b.until) })
	return out
}

// allLied tells whether a node was sent wrong bytes by all holders of a part but itself, since when, and when again.
func (tr *trust) allLied(in *plan.Input, c theCopy, to replica.NodeName) (since, last time.Duration, all bool) {
	holders := in.Holding(c.part, c.gen, c.root)
	for _, h := range holders {
		w, known := tr.lies.of[c][to][h.Node]
		if h.Node == to || !known || tr.known.now-w.last > liesKnown {
			return 0, 0, false
		}
		since, last = max(since, w.first), max(last, w.last)
	}
	return since, last, len(holders) > 0
}

// receiver is the rank on a node that is to load a part, or the first that has to anywhere: the node mirrors it.
func receiver(j *replica.Job, part replica.Part, n replica.NodeName) replica.Rank {
	for r, c := range j.Ranks {
		if c.Node == n && slices.Contains(partsOf(j, replica.Rank(r)), part) {
			return replica.Rank(r)
		}
	}
	return plan.LoaderOf(j.Layout, part)
}

// blameCopies ends the wait for a good copy. Where two nodes were sent wrong bytes by all, the copies don't count for a while, and the next plan
// takes what is left, which the input does not know yet; what one node alone finds is the fault of the rank there. A mirror alone, which
// no rank waits for, is nobody's.
func (tr *trust) blameCopies(in *plan.Input, w waiting, f replica.Fault, elsewhere func(replica.Rank) replica.FaultKind) (doubted bool) {
	kn := tr.known
	p := kn.job.Plan
	for c, by := range tr.lies.of {
		if c.gen != p.Generation || fmt.Sprintf("%v of %v", c.part, c.gen) != w.what {
			continue
		}
		tr.lies.found[doubt{c, w.node}] = kn.now
		var found []replica.NodeName
		for _, n := range slices.Sorted(maps.Keys(by)) {
			if _, _, all := tr.allLied(in, c, n); all && tr.lies.found[doubt{c, n}] != 0 {
				found = append(found, n)
			}
		}
		f.Rank = w.rank
		f.Incarnation = kn.job.Ranks[f.Rank].Incarnation
		if len(found) < 2 {
			if kn.job.Ranks[w.rank].Node != w.node {
				return doubted
			}
			f.Kind = elsewhere(w.rank)
			kn.learnFault(f)
			return doubted
		}
		for _, h := range in.Holding(c.part, c.gen, c.root) {
			tr.lies.doubt[doubt{c, h.Node}] = kn.now + doubtFor*kn.t.HolderGrace
		}
		f.Detail = fmt.Sprintf("what every holder sends of %s fails its digest on nodes %s, though they find their copies good: these don't count for %v", w.what, plan.Joined(found), doubtFor*kn.t.HolderGrace)
		doubted = true
		kn.learnFault(f)
	}
	return doubted
}
