package recovery

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// waits lists what the job waits for at a time, in any phase. It changes nothing. Where all that happens is that time passes the leader is not
// woken, and its own time stands still.
func (l *Leader) waits(now time.Duration) []waiting {
	kn := &l.known
	in := l.input()
	var out []waiting
	switch kn.job.Phase {
	case replica.Opening, replica.Closed:
		if kn.job.Stop != nil {
			return l.ending.waitsForStop()
		}
		out = slices.Concat(l.waitsForPlan(in, now), kn.waitsForNodes(in), l.waitsForRest(in))
	case replica.Planned:
		out = l.waitsForLoads(in, now)
	case replica.Open:
		out = slices.Concat(l.waitsForSteps(in, now), l.asks.waits(in, l.asks.growth(in)), l.ending.waitsForSlots(now),
			l.ending.waitsForEnd())
	case replica.Ended:
	}
	return append(out, l.closing.waitsAtRendezvous(kn, now)...)
}

// waitsForPlan are what the planner waits for but acknowledgements and ranks.
func (l *Leader) waitsForPlan(in *plan.Input, now time.Duration) (out []waiting) {
	kn := &l.known
	if at, ok := kn.clocks.At(replica.Clock{Kind: clockAlone}); ok && kn.job.Phase == replica.Opening && unattended(in) {
		out = append(out, waiting{kind: AwaitLauncher, since: at, until: never})
	}
	if l.closing.capture.asked && now < l.closing.capture.at+kn.bound(AwaitCapture) {
		out = append(out, waiting{kind: AwaitCapture, since: l.closing.capture.at, until: never, what: l.closing.capture.gen.String()})
	}
	v := &l.verdict
	switch {
	case v.Kind == plan.Wait && v.Why == plan.ForHolders:
		for _, n := range v.WaitFor {
			out = append(out, waiting{kind: AwaitHolder, node: n, since: in.AwaySince[n], until: never})
		}
	case v.Kind == plan.Wait && v.Why == plan.ForScan:
		what := "it is being searched"
		if l.closing.unread != "" {
			what = "it can't be read, and is tried again: " + l.closing.unread
		}
		out = append(out, waiting{kind: AwaitDisk, since: kn.stageAt(), until: never, what: what})
	case l.trust.naming.open:
		for i, s := range l.trust.naming.between {
			if l.trust.naming.said[i] == nil {
				out = append(out, waiting{kind: AwaitRegions, node: s.Holder.Node, until: never, what: s.Held.Part.String()})
			}
		}
	}
	return out
}

// waitsForRest are the ranks without a process, and the processes that are not at rest.
func (l *Leader) waitsForRest(in *plan.Input) (out []waiting) {
	kn := &l.known
	j := kn.job
	first, short := in.Opens(), in.Shortages()
	all, moved, stopped := true, time.Duration(0), false
	for r := range j.Ranks {
		rank := replica.Rank(r)
		if j.Vacant(rank) {
			out, all = append(out, l.seating.waitForProcess(in, rank, short)), false
			continue
		}
		rep := in.Said()[r]
		if rep == nil || !rep.Alive || first && j.ClosedEpoch >= j.Epoch {
			all = false
			continue // its node is waited for, its death is a fault, or another epoch is minted first
		}
		s := kn.signs[rank]
		all, moved = all && rep.Attached, max(moved, s.at)
		seen := replica.Clock{Kind: clockSeen, Epoch: j.Epoch, Rank: rank, Of: uint64(s.of)}
		if rep.Attached && (rep.Stopped && !first || in.SealedInitial(*rep)) || s.of != rep.Incarnation {
			kn.clocks.endOwn(seen)
			continue
		}
		w := kn.forRank(AwaitSeal, rank, rep)
		w.since, w.until = min(s.first, kn.clocks.Since(kn.now, seen)), never
		if !rep.Attached { // its daemon was started again, and it does not come back to it: nobody else's doing
			w.why = "; it is not connected to its daemon"
		}
		switch {
		case first && (rep.Attached || j.Growth != nil):
			stopped = stopped || w.halted
		case first || rep.Loaded == 0:
			w.kind, w.until = AwaitJoin, s.at+kn.bound(AwaitJoin)
		default:
			w.kind, w.since = AwaitSurvivor, kn.faultAt()
			w.until = max(w.since, s.at) + kn.bound(AwaitSurvivor) + kn.copies(in.Reports[w.node])
		}
		out = append(out, kn.orItsEnd(w, rep, s))
	}
	if j.Growth != nil {
		return kn.waitsForGrown(in, out)
	}
	if first && all { // who waits for another rank's process can't get on; nor who waits for one that is stopped
		for i := range out {
			if out[i].kind == AwaitSeal && (out[i].halted || !stopped) {
				out[i].until = moved + kn.bound(AwaitSeal) + kn.origin(in.Said()[out[i].rank])
			}
		}
	}
	return out
}

// waitsForLoads are who the planned epoch waits for.
func (l *Leader) waitsForLoads(in *plan.Input, now time.Duration) (out []waiting) {
	kn := &l.known
	p := kn.job.Plan
	if p == nil {
		return nil
	}
	named, what := make(map[replica.NodeName]bool), p.Generation.String()
	loaded := kn.stageAt()
	for r, c := range kn.job.Ranks {
		rank, rep := replica.Rank(r), in.Said()[r]
		s := kn.signs[rank]
		_, here := in.Current(c.Node)
		switch {
		case rep != nil && rep.Loaded == p.Epoch && rep.Alive && rep.Attached:
			loaded = max(loaded, s.at)
		case here && rep != nil && rep.Alive:
			out = append(out, kn.waitForLoad(in, rank, rep, s))
		case !here && !named[c.Node]:
			named[c.Node] = true
			since := kn.goneAt(c.Node)
			if _, known := kn.clocks.before(goneClock(c.Node, kn.nodes[c.Node])); !known && kn.stage.found && !kn.came[c.Node] {
				since = min(since, kn.stageAt())
			}
			out = append(out, waiting{kind: AwaitDaemon, rank: rank, node: c.Node, since: since,
				until: notBefore(kn.began, since+kn.bound(AwaitDaemon), kn.t.Ack), what: what})
		}
	}
	if len(out) == 0 {
		out = kn.waitsForMirrors(in, loaded)
	}
	return append(out, l.trust.waitsForGoodCopies(in, now)...)
}

// waitsForSteps are who holds up the ranks of an open epoch, and its commits.
func (l *Leader) waitsForSteps(in *plan.Input, now time.Duration) (out []waiting) {
	kn := &l.known
	still, stuck := kn.standStill(in, now)
	for i := range still {
		rep := &still[i]
		w := kn.forRank(AwaitStep, rep.Rank, rep)
		w.since, w.what = kn.signs[rep.Rank].at, fmt.Sprintf("step %d, %v", rep.Live.Step(), rep.Live.Phase())
		out = append(out, w)
	}
	away := make(map[replica.NodeName][]replica.Rank)
	for r, c := range kn.job.Ranks {
		rank, rep := replica.Rank(r), in.Said()[r]
		s := kn.signs[rank]
		switch _, here := in.Current(c.Node); {
		case kn.left(rank):
		case !here && !kn.up[c.Node] && c.Incarnation != 0:
			away[c.Node] = append(away[c.Node], rank)
		case here && rep != nil && rep.Alive && rep.Stopped && rep.Loaded == kn.job.Epoch && s.of == rep.Incarnation &&
			now-s.at >= time.Second:
			w := kn.forRank(AwaitPeers, rank, rep)
			w.since = s.at
			out = append(out, w)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(away)) {
		w := waiting{kind: AwaitNode, node: n, since: kn.goneAt(n), until: never, what: fmt.Sprint(plan.RankList(away[n]))}
		if stuck || l.seating.seatsBesides(in, n) >= len(away[n]) {
			w.until = notBefore(kn.began, w.since+kn.bound(AwaitNode), min(kn.bound(AwaitNode), kn.t.Ack))
		} else {
			w.why = "; no other node offers processes for them"
		}
		out = append(out, w)
	}
	return out
}

// overdue makes faults of the waits whose time is over, by the table.
func (l *Leader) overdue() {
	found := false
	for _, w := range l.waits(l.known.now) {
		switch {
		case w.until == never:
		case l.known.now < w.until:
			l.outbox.wakeAt(w.until)
		default:
			l.blameWait(w)
			found = true
		}
	}
	if found {
		l.assertFaults()
	}
}

// blameWait turns a wait that is over into the fault that ends it.
func (l *Leader) blameWait(w waiting) {
	kn := &l.known
	row := &Waits[w.kind]
	f := replica.Fault{Epoch: kn.job.Epoch, Kind: row.fault, Detail: fmt.Sprintf("%s (the bound is %v)", w.text(kn.now), row.Bound)}
	switch {
	case row.node:
		f.Node, f.NodeIncarnation = w.node, kn.nodes[w.node].Incarnation
	case w.kind == AwaitGoodCopy:
		if l.trust.blameCopies(l.input(), w, f, l.elsewhere) {
			l.in = nil // what counts has changed
		}
		return
	default:
		f.Rank, f.Incarnation = w.rank, kn.job.Ranks[w.rank].Incarnation
		if w.kind == AwaitParts || w.kind == AwaitRead {
			f.Kind = l.elsewhere(w.rank)
		}
	}
	kn.learnFault(f)
}

// elsewhere is the kind of fault that has a rank, for whom its node can't get what it needs, planned over: on another node, if one offers a
// process.
func (l *Leader) elsewhere(r replica.Rank) replica.FaultKind {
	if l.seating.seatsBesides(l.input(), l.known.job.Ranks[r].Node) > 0 {
		return replica.Health
	}
	return replica.Exception
}
