// Package plan decides at which generation a job resumes, where each of its parts comes from, and what is waited for before. It is given the
// job's record and the nodes' reports as one Input, and returns a verdict and a plan. Plain data in, plain data out.
//
// Nothing here holds a clock, a goroutine or a logger. It imports only replica and recovery/place besides the standard library.
package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/replica"
)

// Make decides at which generation a job resumes and where every part of it comes from, on sealed parts only. It returns
// a plan only with a Ready verdict.
func Make(in Input) (replica.Plan, Verdict) {
	ch, v := in.Decide()
	if v.Kind != Ready {
		return replica.Plan{}, v
	}
	return in.Write(ch), v
}

// Decide is Make without the plan itself, which places every mirror.
func (in *Input) Decide() (choice, Verdict) {
	if v, waiting := in.WaitForAcks(); waiting {
		return choice{}, v
	}
	if in.Opens() {
		return in.decideOpening()
	}
	ch, v, settled := in.choose()
	if !settled {
		return choice{}, v
	}
	if ranks := in.unready(); len(ranks) > 0 {
		v = Verdict{Kind: Wait, Why: ForRanks, Ranks: ranks, Reason: fmt.Sprintf("ranks %v are not yet claimed and at rest",
			RankList(ranks)), Scan: v.Scan}
		if in.scarce(ch) {
			v.Scarce = ch.gen
		}
		return choice{}, v
	}
	return ch, Verdict{Kind: Ready, Reason: ch.reason, Scan: v.Scan}
}

// scarce tells whether memory holds some part of a choice on fewer nodes than a commit would need.
func (in *Input) scarce(ch choice) bool {
	return slices.ContainsFunc(ch.lots, func(l Lot) bool {
		nodes := make(map[replica.NodeName]bool)
		for _, c := range l.Copies {
			nodes[c.Holder.Node] = true
		}
		return len(nodes) > 0 && len(nodes) < in.Job.Copies
	})
}

// Required are the nodes whose acknowledgement a plan needs: every registered one outside the fault set, the unobserved too.
// Any of them may hold a mirror that was finished after the last commit, of which nothing is recorded. One whose memory is
// proved lost holds nothing, and of an initial state only the ranks' nodes do: these matter for their ranks alone.
func (in *Input) Required() []replica.NodeName {
	if in.counted.required != nil {
		return in.counted.required
	}
	j, runs := in.Record(), make(map[replica.NodeName]bool)
	for r, c := range j.Ranks {
		if !j.Vacant(replica.Rank(r)) {
			runs[c.Node] = true
		}
	}
	out := []replica.NodeName{}
	for _, n := range slices.Sorted(maps.Keys(in.Nodes)) {
		h := replica.Holder{Node: n, Incarnation: in.Nodes[n].Incarnation}
		mayHold := len(j.Lineage) > 0 && j.Growth == nil && !slices.Contains(j.Proved, h)
		if (runs[n] || mayHold) && !j.HolderGone(h) {
			out = append(out, n)
		}
	}
	in.counted.required = out
	return out
}

func (in *Input) WaitForAcks() (Verdict, bool) {
	var missing []replica.NodeName
	for _, n := range in.Required() {
		if _, ok := in.Answered(n); !ok {
			missing = append(missing, n)
		}
	}
	if len(missing) == 0 {
		return Verdict{}, false
	}
	return Verdict{Kind: Wait, Why: ForAcks, WaitFor: missing,
		Reason: fmt.Sprintf("no acknowledgement of the fence of epoch %d yet from %v", in.Job.ClosedEpoch, missing)}, true
}

// unready are the ranks that can't be given a plan: not claimed by a live incarnation, or not at rest under a closed epoch.
func (in *Input) unready() []replica.Rank {
	var out []replica.Rank
	for r := range in.Job.Ranks {
		if rep, ok := in.Rank(replica.Rank(r)); !ok || !rep.Stopped && !in.SealedInitial(rep) {
			out = append(out, replica.Rank(r))
		}
	}
	return out
}

func (in *Input) SealedInitial(rep replica.RankReport) bool {
	return in.Job.Phase == replica.Opening && rep.Initial == in.Job.Epoch
}

// Rank is what the daemon of a rank's holder says of it, where the holder is neither lost nor silent and its process is
// there and attached.
func (in *Input) Rank(r replica.Rank) (replica.RankReport, bool) {
	rr := in.Said()[r]
	if rr == nil || in.Record().Vacant(r) {
		return replica.RankReport{}, false
	}
	return *rr, rr.Alive && rr.Attached
}

// Said is by rank what the registered life of its node says of its process.
func (in *Input) Said() []*replica.RankReport {
	if in.counted.ranks == nil {
		in.counted.ranks = make([]*replica.RankReport, len(in.Job.Ranks))
		for n := range in.Reports {
			if rep, ok := in.Current(n); ok {
				Index(in.counted.ranks, rep, func(c replica.Claimed) bool { return c.Node == n }, in.Job.Ranks)
			}
		}
	}
	return in.counted.ranks
}

// choice is a generation with all its parts.
type choice struct {
	gen     replica.Generation
	lots    []Lot
	reason  string
	initial bool   // what every rank sealed as its initial state
	resumed string // which durable generation it is, and which were passed over; empty: memory has it
}

// choose picks the generation. Memory serves at once unless it would lose a committed step; else recorded holders that are
// not proved lost are waited for, and then the newest generation is taken that memory and disk can assemble part by part.
func (in *Input) choose() (choice, Verdict, bool) {
	j, st := in.Job, in.Stock()
	if d, times := Split(j); times > 1 {
		return in.fromDurable(st, d, times)
	}
	g, lots, found := st.Newest(in.Record())
	if found && !j.Committed.IsZero() && g.Step >= j.Position.Step {
		return choice{gen: g, lots: lots, reason: in.freshReason(g)}, Verdict{}, true
	}
	why := in.lossReason(st)
	disk := j.Options.DurableEvery > 0 || !j.Durable.IsZero()
	scan := disk && !in.Scanned
	if names, until := in.awaited(st); len(names) > 0 {
		return choice{}, Verdict{Kind: Wait, Why: ForHolders, WaitFor: names, Until: until, Scan: scan,
			Reason: fmt.Sprintf("%s; waiting for %v, recorded as holders and not proved lost", why, names)}, false
	}
	if scan && in.Unread == "" {
		return choice{}, Verdict{Kind: Wait, Why: ForScan, Scan: true, Reason: why + "; searching the durable tier"}, false
	}
	if scan && in.diskMayServe(g, found) {
		return choice{}, Verdict{Kind: Wait, Why: ForScan, Scan: true, Reason: fmt.Sprintf("%s; the durable tier can't be read, it is tried again: %s", why, in.Unread)}, false
	}
	if c, ok := in.fromDisk(st, g, found); ok {
		c.reason = why + "; " + c.reason
		return c, Verdict{}, true
	}
	tail := "the durable tier has none newer"
	if scan {
		tail = "nothing newer was written to the durable tier, which can't be read: " + in.Unread
	}
	if found {
		return choice{gen: g, lots: lots, reason: fmt.Sprintf("%s; %v is the newest generation that memory holds whole, and %s", why, g, tail)}, Verdict{}, true
	}
	switch {
	case !disk:
		tail = "the durable tier is off"
	case !scan:
		tail = "the durable tier has no valid one" + in.wrongWith() + in.beforeGrowth()
	}
	return choice{}, Verdict{Kind: Stuck, Final: len(in.unproved(st)) == 0 && in.allAnswered() && in.Doubted == nil, Reason: fmt.Sprintf("no generation can be assembled: %s; %s", why, tail)}, false
}

// beforeGrowth says of a durable generation that nobody can load here, since the job's regions were others then, how it is gone on from.
func (in *Input) beforeGrowth() string {
	j := *in.Job
	j.Grown = 0
	for _, d := range in.Durable {
		if d.Bad == "" && d.Generation.Epoch < in.Job.Grown && eligible(&j, d.Generation) {
			return fmt.Sprintf(" but %v, which is from before the job grew in epoch %d: replicad run --resume begins a job from there, with the regions of then", d.Generation, in.Job.Grown)
		}
	}
	return ""
}

// diskMayServe tells whether the durable tier may hold what memory does not, by what is recorded of it: something newer than
// memory has was written, or was being written. While that can't be read, nobody may say that it is lost.
func (in *Input) diskMayServe(inMemory replica.Generation, found bool) bool {
	written := in.Job.Durable
	if w := in.Job.Writer; w != nil && Newer(w.Generation, written) < 0 {
		written = w.Generation
	}
	return !written.IsZero() && (!found || Newer(written, inMemory) < 0)
}

// fromDisk is the newest durable generation that is eligible and newer than what memory has, each part from memory where
// a healthy holder is left.
func (in *Input) fromDisk(st stock, inMemory replica.Generation, found bool) (choice, bool) {
	durable := slices.Clone(in.Durable)
	slices.SortFunc(durable, func(a, b DurableGen) int { return Newer(a.Generation, b.Generation) })
	for _, d := range durable {
		if found && Newer(d.Generation, inMemory) >= 0 {
			break // disk is never read for what memory has
		}
		if d.Bad != "" || !eligible(in.Job, d.Generation) {
			continue
		}
		lots, missing := st.assemble(in.Record(), d.Generation, &d)
		if len(missing) > 0 {
			continue
		}
		n := 0
		for _, l := range lots {
			if len(l.Copies) == 0 {
				n++
			}
		}
		resumed := ""
		if n > 0 {
			resumed = in.resumedText(d)
		}
		return choice{gen: d.Generation, lots: lots, resumed: resumed, reason: fmt.Sprintf("%v is the newest generation that memory and the durable tier can assemble, %d of %d parts from disk", d.Generation, n, len(lots))}, true
	}
	return choice{}, false
}

func (in *Input) freshReason(g replica.Generation) string {
	if ahead := g.Step - in.Job.Position.Step; ahead > 0 {
		return fmt.Sprintf("%v is whole in memory, %d beyond the committed step", g, ahead)
	}
	return fmt.Sprintf("%v, the committed step, is the newest generation whole in memory", g)
}

// lossReason says which parts of the committed generation memory lacks.
func (in *Input) lossReason(st stock) string {
	j := in.Job
	if j.Committed.IsZero() {
		return "nothing has been committed in this life of the job"
	}
	if !eligible(j, j.Committed) {
		return fmt.Sprintf("the committed generation %v is condemned or disputed", j.Committed)
	}
	_, missing := st.assemble(in.Record(), j.Committed, nil)
	names := make([]string, 0, Listed+1)
	for _, p := range missing[:min(len(missing), Listed)] {
		names = append(names, p.String())
	}
	if more := len(missing) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more parts", more))
	}
	return fmt.Sprintf("memory lacks %s of the committed generation %v%s", strings.Join(names, ", "), j.Committed, in.doubtfulCopies(j.Committed))
}

// unproved are the recorded holders (by the commit, and by placement: members and mirrors) of parts of the committed
// generation that memory lacks, where nothing proves that they lost them: they have not answered since the fence, and
// neither another kernel boot nor anybody's word says that their memory is gone.
func (in *Input) unproved(st stock) []replica.NodeName {
	j, out := in.Job, make(map[replica.NodeName]bool)
	if !eligible(j, j.Committed) {
		return nil
	}
	_, missing := st.assemble(in.Record(), j.Committed, nil)
	for _, part := range missing {
		for _, h := range in.recorded(part) {
			if _, ok := in.Answered(h.Node); !ok && !slices.Contains(j.Proved, h) {
				out[h.Node] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(out))
}

func (in *Input) recorded(part replica.Part) []replica.Holder {
	j := in.Record()
	out := slices.Clone(j.PartRoot(part).Holders)
	member := func(r replica.Rank) {
		if c := j.Ranks[r]; c.Incarnation != 0 {
			out = append(out, replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation})
		}
	}
	mirrors := func(names []replica.NodeName) {
		for _, n := range names {
			out = append(out, replica.Holder{Node: n, Incarnation: in.Nodes[n].Incarnation})
		}
	}
	if part.Kind == replica.PrivatePart {
		member(replica.Rank(part.Index))
		mirrors(place.At(j.Mirrors, int(part.Index)))
		return out
	}
	for _, r := range j.MembersOf(replica.GroupID(part.Index)) {
		member(r)
	}
	mirrors(place.At(j.GroupMirrors, int(part.Index)))
	return out
}

// awaited are the unproved holders whose grace has not passed, and when the last of them will have had it.
func (in *Input) awaited(st stock) (names []replica.NodeName, until time.Duration) {
	for _, n := range in.unproved(st) {
		since, ok := in.AwaySince[n]
		if !ok {
			since = in.Now
		}
		if ends := max(since+in.Grace, in.Least); in.Now < ends {
			names, until = append(names, n), max(until, ends)
		}
	}
	return names, until
}

// allAnswered tells whether no node is away: one that is might hold what was never recorded of it.
func (in *Input) allAnswered() bool {
	for n, node := range in.Nodes {
		h := replica.Holder{Node: n, Incarnation: node.Incarnation}
		if _, ok := in.Answered(n); !ok && !slices.Contains(in.Job.Proved, h) {
			return false
		}
	}
	return true
}

// Cites is a plan that names only its epoch and what it was made on.
func (in *Input) Cites() replica.Plan {
	p := replica.Plan{Epoch: in.Job.Epoch + 1, Cites: in.Job.LastIndex}
	if in.Job.Phase == replica.Opening {
		p.Epoch = in.Job.Epoch // Begin minted it
	}
	return p
}

// Write makes the plan of a choice.
func (in *Input) Write(ch choice) replica.Plan {
	j := in.Job
	p := in.Cites()
	p.Generation, p.Layout, p.Ranks, p.Unvouched, p.Reason = ch.gen, j.Layout, slices.Clone(j.Ranks), unvouched(ch.lots), ch.reason+aloneIn(ch.lots)
	if ch.initial {
		p.Initial, p.Unvouched, p.Reason = true, false, ch.reason
	}
	p.Resumed = ch.resumed
	p.StepsLost, p.CommittedLost = in.lost(ch.gen)
	for _, l := range ch.lots {
		p.Sources = append(p.Sources, in.source(l))
	}
	p.Mirrors, p.GroupMirrors = place.Mirrors(place.Placement{Job: j.ID, Layout: j.Layout, Ranks: j.Ranks, Nodes: in.Nodes,
		Usable: in.Usable(),
		Copies: place.MinCopies(j.Options), Mirrors: j.Mirrors, GroupMirrors: j.GroupMirrors, Misfit: in.Misfit})
	return p
}

// aloneShown bounds the parts that a reason names.
const aloneShown = 8

// aloneIn says on whose word alone a choice rests; empty: on nobody's.
func aloneIn(lots []Lot) (s string) {
	n := 0
	for _, l := range lots {
		if !l.Unvouched {
			continue
		}
		if n++; n > aloneShown {
			return s + "; and others"
		}
		who := "no rank that produced it is left"
		if i := slices.IndexFunc(l.Copies, Sealed.produced); i >= 0 {
			who = fmt.Sprintf("rank %d alone vouches for it", l.Copies[i].Held.Rank)
		}
		s += fmt.Sprintf("; UNVOUCHED: %v: %s", l.Part, who)
	}
	return s
}

func (in *Input) source(l Lot) replica.Source {
	s := replica.Source{Part: l.Part, Root: l.root, Tier: replica.Disk}
	if len(l.Copies) > 0 {
		s.Tier = replica.PeerRAM
	}
	own, named := make(map[replica.Rank]bool), make(map[replica.Holder]bool) // ranks whose node has it in their own arena
	for _, c := range l.Copies {
		if !named[c.Holder] {
			named[c.Holder] = true
			s.Holders = append(s.Holders, c.Holder)
		}
		if r := c.Held.Rank; !c.Held.Mirror && int(r) < len(in.Job.Ranks) && in.Job.Ranks[r].Node == c.Holder.Node {
			own[r] = true
		}
	}
	slices.SortFunc(s.Holders, func(a, b replica.Holder) int { return cmp.Compare(a.Node, b.Node) })
	loaders := []replica.Rank{replica.Rank(l.Part.Index)}
	if l.Part.Kind == replica.ReplicatedPart {
		loaders = in.Record().MembersOf(replica.GroupID(l.Part.Index))
	}
	if !slices.ContainsFunc(loaders, func(r replica.Rank) bool { return !own[r] }) {
		s.Tier = replica.OwnRAM
	}
	return s
}
