package recovery

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/replica"
)

// waiting is one wait of the job as it is now. What is named to people and what is judged by time is one list.
type waiting struct {
	kind    WaitKind
	rank    replica.Rank
	node    replica.NodeName
	process string
	pid     uint64
	halted  bool
	since   time.Duration
	until   time.Duration // the leader judges it then; negative: it does not, or not by time
	what    string
	why     string // what is said behind it
}

// never is the until of a wait that the leader does not judge. What has lasted since before this leader's clock began has a negative time.
const never time.Duration = math.MinInt64

// waits lists what the job waits for at a time, in any phase. It changes nothing. Where all that happens is that time passes the leader is not
// woken, and its own time stands still.
func (l *Leader) waits(now time.Duration) []waiting {
	in := l.input()
	var out []waiting
	switch l.known.job.Phase {
	case replica.Opening, replica.Closed:
		if l.known.job.Stop != nil {
			return l.waitsForStop()
		}
		out = slices.Concat(l.waitsForPlan(in, now), l.known.waitsForNodes(in), l.waitsForRest(in))
	case replica.Planned:
		out = l.waitsForLoads(in, now)
	case replica.Open:
		out = slices.Concat(l.waitsForSteps(in, now), l.asks.waits(in, l.asks.growth(in)), l.waitsForSlots(now), l.waitsForEnd())
	case replica.Ended:
	}
	return append(out, l.waitsAtRendezvous(now)...)
}

// waitsForPlan are what the planner waits for but acknowledgements and ranks.
func (l *Leader) waitsForPlan(in *PlanInput, now time.Duration) (out []waiting) {
	if at, ok := l.known.clocks.At(replica.Clock{Kind: clockAlone}); ok && l.known.job.Phase == replica.Opening && l.unattended() {
		out = append(out, waiting{kind: AwaitLauncher, since: at, until: never})
	}
	if l.closing.capture.asked && now < l.closing.capture.at+l.known.bound(AwaitCapture) {
		out = append(out, waiting{kind: AwaitCapture, since: l.closing.capture.at, until: never, what: l.closing.capture.gen.String()})
	}
	v := &l.verdict
	switch {
	case v.Kind == Wait && v.Why == ForHolders:
		for _, n := range v.WaitFor {
			out = append(out, waiting{kind: AwaitHolder, node: n, since: in.AwaySince[n], until: never})
		}
	case v.Kind == Wait && v.Why == ForScan:
		what := "it is being searched"
		if l.closing.unread != "" {
			what = "it can't be read, and is tried again: " + l.closing.unread
		}
		out = append(out, waiting{kind: AwaitDisk, since: l.known.stageAt(), until: never, what: what})
	case l.trust.naming.open:
		for i, s := range l.trust.naming.between {
			if l.trust.naming.said[i] == nil {
				out = append(out, waiting{kind: AwaitRegions, node: s.holder.Node, until: never, what: s.held.Part.String()})
			}
		}
	}
	return out
}

// waitsForNodes are the nodes whose acknowledgement a plan needs. One that has acknowledged the fence and still settles is not silent: its
// ranks have settle_timeout, or as long as their copies take, since it last said something.
func (kn *known) waitsForNodes(in *PlanInput) (out []waiting) {
	if kn.job.ClosedEpoch >= kn.job.Epoch && kn.job.Phase == replica.Opening {
		return nil // another epoch is minted first
	}
	for _, n := range in.Required() {
		if _, ok := in.answered(n); ok {
			continue
		}
		if rep, ok := in.current(n); ok && rep.Fenced >= kn.job.ClosedEpoch {
			since := kn.settlesSince(rep)
			out = append(out, waiting{kind: AwaitSettle, node: n, since: since, until: notBefore(kn.began, since+kn.bound(AwaitSettle)+kn.copies(rep), kn.t.Ack)})
			continue
		}
		since := kn.missedSince(n)
		out = append(out, waiting{kind: AwaitAck, node: n, since: since, until: notBefore(kn.began, since+kn.bound(AwaitAck), kn.t.Ack), what: fmt.Sprint(kn.job.ClosedEpoch)})
	}
	return out
}

// copies is how much longer than settle_timeout a node's copies may take, by its word.
func (kn *known) copies(rep replica.NodeReport) time.Duration {
	return max(0, millis(rep.SettleMS)-kn.t.Settle)
}

// longest bounds what a node may say of a time.
const longest = 365 * 24 * time.Hour

func millis(n uint64) time.Duration {
	return time.Duration(min(n, uint64(longest/time.Millisecond))) * time.Millisecond
}

// waitsForRest are the ranks without a process, and the processes that are not at rest.
func (l *Leader) waitsForRest(in *PlanInput) (out []waiting) {
	j := l.known.job
	first, short := in.opens(), in.shortages()
	all, moved, stopped := true, time.Duration(0), false
	for r := range j.Ranks {
		rank := replica.Rank(r)
		if j.vacant(rank) {
			out, all = append(out, l.waitForProcess(in, rank, short)), false
			continue
		}
		rep := in.said()[r]
		if rep == nil || !rep.Alive || first && j.ClosedEpoch >= j.Epoch {
			all = false
			continue // its node is waited for, its death is a fault, or another epoch is minted first
		}
		s := l.known.signs[rank]
		all, moved = all && rep.Attached, max(moved, s.at)
		seen := replica.Clock{Kind: clockSeen, Epoch: j.Epoch, Rank: rank, Of: uint64(s.of)}
		if rep.Attached && (rep.Stopped && !first || in.sealedInitial(*rep)) || s.of != rep.Incarnation {
			l.known.clocks.endOwn(seen)
			continue
		}
		w := l.known.forRank(AwaitSeal, rank, rep)
		w.since, w.until = min(s.first, l.known.clocks.Since(l.known.now, seen)), never
		if !rep.Attached { // its daemon was started again, and it does not come back to it: nobody else's doing
			w.why = "; it is not connected to its daemon"
		}
		switch {
		case first && (rep.Attached || j.Growth != nil):
			stopped = stopped || w.halted
		case first || rep.Loaded == 0:
			w.kind, w.until = AwaitJoin, s.at+l.known.bound(AwaitJoin)
		default:
			w.kind, w.since = AwaitSurvivor, l.known.faultAt()
			w.until = max(w.since, s.at) + l.known.bound(AwaitSurvivor) + l.known.copies(in.Reports[w.node])
		}
		out = append(out, l.known.orItsEnd(w, rep, s))
	}
	if j.Growth != nil {
		return l.known.waitsForGrown(in, out)
	}
	if first && all { // who waits for another rank's process can't get on; nor who waits for one that is stopped
		for i := range out {
			if out[i].kind == AwaitSeal && (out[i].halted || !stopped) {
				out[i].until = moved + l.known.bound(AwaitSeal) + l.known.origin(in.said()[out[i].rank])
			}
		}
	}
	return out
}

// origin is how much longer the initial state of a rank may take that reads it from another run's generation: into memory that the process has had in
// reach before, so that nothing shows how far it is.
func (kn *known) origin(rep *replica.RankReport) time.Duration {
	if kn.job.From == nil || rep == nil {
		return 0
	}
	return millis(rep.LoadMS)
}

// orItsEnd is the wait for the end of a rank's process instead, where that is on its way out.
func (kn *known) orItsEnd(w waiting, rep *replica.RankReport, s sign) waiting {
	if rep.EndingMS != 0 && !w.halted {
		w.kind, w.since = AwaitEnd, s.at
		w.until = w.since + kn.bound(AwaitEnd) + millis(rep.EndingMS)
	}
	return w
}

// forRank is a wait for the process of a rank.
func (kn *known) forRank(k WaitKind, r replica.Rank, rep *replica.RankReport) waiting {
	return waiting{kind: k, rank: r, node: kn.job.Ranks[r].Node, pid: rep.PID, process: fmt.Sprintf("process %d", rep.PID), halted: rep.Halted, until: never}
}

func (l *Leader) waitForProcess(in *PlanInput, r replica.Rank, short string) waiting {
	o := l.offers[r]
	switch {
	case o == nil || o.node == "":
		return waiting{kind: AwaitProcess, rank: r, until: never, why: short}
	case !l.seats(in).starts(o.node, r):
		return waiting{kind: AwaitStart, rank: r, node: o.node, since: o.at, until: never}
	}
	w := waiting{kind: AwaitAttach, rank: r, node: o.node, since: o.at, until: never, process: "its process", why: short}
	rep := in.Reports[o.node]
	if i := slices.Index(rep.Starting, r); i >= 0 && i < len(rep.StartingPIDs) && rep.StartingPIDs[i] != 0 {
		w.pid, w.halted = rep.StartingPIDs[i], slices.Contains(rep.StartingHalted, r)
		w.process = fmt.Sprintf("process %d", w.pid)
	}
	return w
}

// waitsForLoads are who the planned epoch waits for.
func (l *Leader) waitsForLoads(in *PlanInput, now time.Duration) (out []waiting) {
	p := l.known.job.Plan
	if p == nil {
		return nil
	}
	named, what := make(map[replica.NodeName]bool), p.Generation.String()
	loaded := l.known.stageAt()
	for r, c := range l.known.job.Ranks {
		rank, rep := replica.Rank(r), in.said()[r]
		s := l.known.signs[rank]
		_, here := in.current(c.Node)
		switch {
		case rep != nil && rep.Loaded == p.Epoch && rep.Alive && rep.Attached:
			loaded = max(loaded, s.at)
		case here && rep != nil && rep.Alive:
			out = append(out, l.known.waitForLoad(in, rank, rep, s))
		case !here && !named[c.Node]:
			named[c.Node] = true
			since := l.known.goneAt(c.Node)
			if _, known := l.known.clocks.before(goneClock(c.Node, l.known.nodes[c.Node])); !known && l.known.stage.found && !l.known.came[c.Node] {
				since = min(since, l.known.stageAt())
			}
			out = append(out, waiting{kind: AwaitDaemon, rank: rank, node: c.Node, since: since, until: notBefore(l.known.began, since+l.known.bound(AwaitDaemon), l.known.t.Ack), what: what})
		}
	}
	if len(out) == 0 {
		out = l.known.waitsForMirrors(in, loaded)
	}
	return append(out, l.trust.waitsForGoodCopies(in, now)...)
}

// waitForLoad is what a rank waits for that has not loaded: its parts come, and then its process has to load them.
func (kn *known) waitForLoad(in *PlanInput, r replica.Rank, rep *replica.RankReport, s sign) waiting {
	p := kn.job.Plan
	w := kn.forRank(AwaitParts, r, rep)
	w.what, w.since = p.Generation.String(), kn.stageAt()
	if s.of == rep.Incarnation {
		w.since = max(w.since, s.at)
	}
	grown := millis(rep.LoadMS)
	switch {
	case w.halted: // its parts come all the same; it can do nothing with them
		w.kind, grown = AwaitLoad, 0
	case !rep.Stopped || !rep.Attached:
		w.kind, grown = AwaitSurvivor, 0
	case rep.Ordered == p.Epoch:
		w.kind = AwaitLoad
	case fromDisk(kn.job.Job, r):
		w.kind = AwaitRead
	}
	if (w.kind == AwaitParts || w.kind == AwaitRead) && rep.Failing != "" {
		w.why = ": " + rep.Failing
	}
	w.until = w.since + kn.bound(w.kind) + grown
	if planted.NeverLoads && w.kind == AwaitLoad {
		w.until = never
	}
	return kn.orItsEnd(w, rep, s)
}

// fromDisk tells whether some part that a rank is to load comes from the durable tier.
func fromDisk(j *replica.Job, r replica.Rank) bool {
	for _, part := range partsOf(j, r) {
		if src, ok := j.Plan.Source(part); ok && src.Tier == replica.Disk {
			return true
		}
	}
	return false
}

func partsOf(j *replica.Job, r replica.Rank) []replica.Part {
	return []replica.Part{replica.OfGroup(j.Layout.Groups[r]), replica.OfRank(r)}
}

// waitsForMirrors are the mirrors that have not got what was loaded.
func (kn *known) waitsForMirrors(in *PlanInput, loaded time.Duration) (out []waiting) {
	p, copies := kn.job.Plan, in.copiesPossible()
	for _, src := range p.Sources {
		holders := in.holding(src.Part, p.Generation, src.Root)
		if len(holders) >= copies {
			continue
		}
		lists := p.Mirrors
		if src.Part.Kind == replica.ReplicatedPart {
			lists = p.GroupMirrors
		}
		for _, n := range at(lists, int(src.Part.Index)) {
			if !slices.ContainsFunc(holders, func(h replica.Holder) bool { return h.Node == n }) {
				out = append(out, waiting{kind: AwaitMirror, node: n, since: loaded, until: never, what: fmt.Sprintf("%v of %v", src.Part, p.Generation)})
			}
		}
	}
	return out
}

// waitsForSteps are who holds up the ranks of an open epoch, and its commits.
func (l *Leader) waitsForSteps(in *PlanInput, now time.Duration) (out []waiting) {
	still, stuck := l.known.standStill(in, now)
	for i := range still {
		rep := &still[i]
		w := l.known.forRank(AwaitStep, rep.Rank, rep)
		w.since, w.what = l.known.signs[rep.Rank].at, fmt.Sprintf("step %d, %v", rep.Live.Step(), rep.Live.Phase())
		out = append(out, w)
	}
	away := make(map[replica.NodeName][]replica.Rank)
	for r, c := range l.known.job.Ranks {
		rank, rep := replica.Rank(r), in.said()[r]
		s := l.known.signs[rank]
		switch _, here := in.current(c.Node); {
		case l.known.left(rank):
		case !here && !l.known.up[c.Node] && c.Incarnation != 0:
			away[c.Node] = append(away[c.Node], rank)
		case here && rep != nil && rep.Alive && rep.Stopped && rep.Loaded == l.known.job.Epoch && s.of == rep.Incarnation && now-s.at >= time.Second:
			w := l.known.forRank(AwaitPeers, rank, rep)
			w.since = s.at
			out = append(out, w)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(away)) {
		w := waiting{kind: AwaitNode, node: n, since: l.known.goneAt(n), until: never, what: fmt.Sprint(rankList(away[n]))}
		if stuck || l.seatsBesides(in, n) >= len(away[n]) {
			w.until = notBefore(l.known.began, w.since+l.known.bound(AwaitNode), min(l.known.bound(AwaitNode), l.known.t.Ack))
		} else {
			w.why = "; no other node offers processes for them"
		}
		out = append(out, w)
	}
	return out
}

// seatsBesides is how many processes other nodes than one offer.
func (l *Leader) seatsBesides(in *PlanInput, but replica.NodeName) (n int) {
	for name := range in.Nodes {
		if _, connected := in.current(name); connected && name != but && l.known.admissible(name) {
			n += l.seats(in).free(name)
		}
	}
	return n
}

// waitsForEnd are what a job waits for whose ranks have all left.
func (l *Leader) waitsForEnd() []waiting {
	last, held, all := l.parted()
	switch {
	case !all || l.parting.epoch != l.known.job.Epoch:
		return nil
	case !l.Parted():
		return []waiting{{kind: AwaitCommit, since: partedAt(&l.known.clocks, l.known.now, l.known.job.Epoch), until: never, what: fmt.Sprint(min(last, held))}}
	case l.known.job.Undurable() && !l.writesNoMore:
		return []waiting{{kind: AwaitWrite, since: partedAt(&l.known.clocks, l.known.now, l.known.job.Epoch), until: never, what: fmt.Sprint(l.known.job.Committed.Step)}}
	}
	return nil
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
	row := &Waits[w.kind]
	f := replica.Fault{Epoch: l.known.job.Epoch, Kind: row.fault, Detail: fmt.Sprintf("%s (the bound is %v)", w.text(l.known.now), row.Bound)}
	switch {
	case row.node:
		f.Node, f.NodeIncarnation = w.node, l.known.nodes[w.node].Incarnation
	case w.kind == AwaitGoodCopy:
		if l.trust.blameCopies(l.input(), w, f, l.elsewhere) {
			l.in = nil // what counts has changed
		}
		return
	default:
		f.Rank, f.Incarnation = w.rank, l.known.job.Ranks[w.rank].Incarnation
		if w.kind == AwaitParts || w.kind == AwaitRead {
			f.Kind = l.elsewhere(w.rank)
		}
	}
	l.known.learnFault(f)
}

// elsewhere is the kind of fault that has a rank, for whom its node can't get what it needs, planned over: on another node, if one offers a
// process.
func (l *Leader) elsewhere(r replica.Rank) replica.FaultKind {
	if l.seatsBesides(l.input(), l.known.job.Ranks[r].Node) > 0 {
		return replica.Health
	}
	return replica.Exception
}

// text says the wait as the table has it.
func (w waiting) text(now time.Duration) string {
	says := Waits[w.kind].Says
	if w.halted {
		says = saysHalted
	}
	return strings.NewReplacer("{rank}", fmt.Sprint(w.rank), "{process}", w.process, "{pid}", fmt.Sprint(w.pid), "{node}", string(w.node),
		"{since}", max(now-w.since, 0).Round(time.Second).String(), "{what}", w.what).Replace(says) + w.why
}

// maxAwaited bounds how many waits Awaited names one by one.
const maxAwaited = 16

// Awaited says what the job waits for before it can go on, and since when, by the table of waits. It changes nothing.
func (l *Leader) Awaited(now time.Duration) (out []string) {
	return l.named(now, func(waiting) bool { return true })
}

// Overlong is Awaited of what has lasted for some time, and is not said by those who wait: the launchers of a job that opens or was closed
// hear of their own processes from their nodes, and of processes that nobody offers from the driver.
func (l *Leader) Overlong(now, least time.Duration) []string {
	now = max(now, l.known.now)
	return l.named(now, func(w waiting) bool {
		switch w.kind {
		case AwaitProcess, AwaitAttach, AwaitJoin, AwaitSeal, AwaitRegions:
			return false
		case AwaitStep: // it may be long; one beside a rank that has finished is the last
			return (w.halted || l.known.anyLeft()) && now-w.since >= least
		case AwaitSurvivor, AwaitEnd:
			return l.known.job.Phase == replica.Planned && now-w.since >= least
		default:
			return now-w.since >= least
		}
	})
}

func (l *Leader) named(now time.Duration, want func(waiting) bool) (out []string) {
	if l.known.job == nil || l.known.job.Phase == replica.Ended {
		return nil
	}
	more := 0
	now = max(now, l.known.now)
	for _, w := range l.waits(now) {
		switch {
		case !want(w):
		case len(out) < maxAwaited:
			out = append(out, w.text(now))
		default:
			more++
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}
