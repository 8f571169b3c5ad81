package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// Loss is nodes that a job may lose at once. No nodes are the loss of a process alone, whose node starts another.
type Loss struct {
	Nodes []replica.NodeName
	// Kept tells that the memory of Nodes outlives the loss: they are drained or quarantined, and serve what they hold.
	Kept bool
	// Absent nodes count for nothing, though what runs there may run on: no copy, no process and no vote of theirs is relied on.
	Absent []replica.NodeName
	// Voters have a vote on the log, whether or not they use it. None: the majority is not asked about.
	Voters []replica.NodeName
	// Mute are those of Voters that do not vote now. They count in what a majority is of, and for nothing else.
	Mute []replica.NodeName
}

// voting are the voters whose votes can be relied on before the loss.
func (l Loss) voting() (out []replica.NodeName) {
	for _, v := range l.Voters {
		if !slices.Contains(l.Mute, v) && !slices.Contains(l.Absent, v) {
			out = append(out, v)
		}
	}
	return out
}

// spare is how many of those that vote may be lost before the others are no majority. There is a leader, so there is a majority, though nobody
// knows yet who that is.
func (l Loss) spare() int { return max(0, len(l.voting())-len(l.Voters)/2-1) }

// Survival says what would become of a job at a loss.
type Survival struct {
	Loss   Loss
	Resume replica.Generation // the newest generation that the memory left behind would have whole; zero: none
	// Lacks are parts of the committed generation that no memory would have, maxLacks at most; Lacking counts all of them.
	Lacks   []Lack
	Lacking int
	Moves   []replica.Rank // ranks that need a process on one of the nodes that are left, in rising order
	Offered int            // processes that these nodes would start
	Votes   int            // of Loss.Voters, that vote and would be left

	of *outlook
	is map[replica.NodeName]bool // the nodes whose copies are gone
}

// Lack is a part that no memory would have.
type Lack struct {
	Part    replica.Part
	Holders []replica.NodeName // that have it now
	Older   replica.Generation // the newest of the part that a node which is left reported; zero: none
	On      replica.NodeName   // that node
}

// maxLacks bounds the missing parts that a Survival names.
const maxLacks = 4

// Survives says for each loss whether the job would survive it, from which generation and holders each part would come back, and if not, why
// not. It asks the rules that Plan follows: the answer is what Plan would decide once the epoch is closed and every other node has answered.
// While an epoch is open a node is relied on for what it must keep until the next commit, and for nothing else.
func Survives(in PlanInput, losses ...Loss) []Survival {
	o, out := newOutlook(&in), make([]Survival, len(losses))
	for i, l := range losses {
		out[i] = o.survives(l)
	}
	return out
}

// outlook is what the nodes of a job could serve, were its epoch closed now.
type outlook struct {
	now     *PlanInput                          // what is known
	then    *PlanInput                          // what the planner would get
	able    []replica.NodeName                  // could be given ranks and mirrors, in order
	offers  map[replica.NodeName]int            // of these
	offered int                                 // all of them
	coming  map[replica.Rank][]replica.NodeName // of these, that run a process for the rank which has not attached
	vacant  []replica.Rank
	runs    map[replica.NodeName][]replica.Rank // claims
	gens    []replica.Generation                // newest first
	parts   []replica.Part
	shelf   map[replica.Generation]*shelf
	older   map[replica.Part][]sealed // what was reported, newest first; made when it is first asked for
}

func newOutlook(known *PlanInput) *outlook {
	in := known.fresh(known.Job)
	o := &outlook{now: in, then: in.fenced(), offers: make(map[replica.NodeName]int), coming: make(map[replica.Rank][]replica.NodeName), runs: make(map[replica.NodeName][]replica.Rank),
		parts: parts(in.Job.Layout), shelf: make(map[replica.Generation]*shelf)}
	o.gens = o.then.stock().generations()
	usable := in.usable()
	for _, n := range slices.Sorted(maps.Keys(in.Nodes)) {
		if !usable[n] {
			continue
		}
		rep := in.Reports[n]
		o.able, o.offers[n] = append(o.able, n), max(0, rep.Offers)
		o.offered += o.offers[n]
		for _, r := range rep.Starting {
			o.coming[r] = append(o.coming[r], n)
		}
	}
	for r, c := range in.Job.Ranks {
		if in.record().vacant(replica.Rank(r)) {
			o.vacant = append(o.vacant, replica.Rank(r))
		} else {
			o.runs[c.Node] = append(o.runs[c.Node], replica.Rank(r))
		}
	}
	return o
}

// fresh is the same input for another state of the job, with nothing counted yet.
func (in *PlanInput) fresh(job *replica.Job) *PlanInput {
	return &PlanInput{Job: job, Nodes: in.Nodes, Reports: in.Reports, Connected: in.Connected, AwaySince: in.AwaySince, Now: in.Now, Grace: in.Grace, Least: in.Least, Durable: in.Durable, Scanned: in.Scanned, Unread: in.Unread, Misfit: in.Misfit}
}

// fenced is the input with the answers that the nodes would give to a fence. Nodes that have answered the fence of this recovery said all that
// they hold. Of any other the record says what it has pinned, and its newest report, which the next steps overtake, what it has got since of
// the same generations: nobody frees these before the next commit.
func (in *PlanInput) fenced() *PlanInput {
	out, j := in.fresh(in.Job), in.record()
	out.Reports, out.Connected = make(map[replica.NodeName]replica.NodeReport, len(in.Nodes)), make(map[replica.NodeName]bool, len(in.Nodes))
	pinned := in.pinned()
	for n, node := range in.Nodes {
		h := node.Holder()
		rep, ok := in.acknowledged(n)
		if !ok || j.Phase == replica.Open {
			last := in.Reports[n]
			if last.Holder != h {
				last = replica.NodeReport{}
			}
			rep = replica.NodeReport{Job: j.ID, Holder: h, Parts: slices.DeleteFunc(pinned[h], func(p replica.Held) bool {
				return slices.ContainsFunc(last.Bad, func(bad replica.Held) bool { // it was given up
					return bad.Part == p.Part && bad.Generation == p.Generation && bad.Root == p.Root
				})
			})}
			for _, p := range last.Parts {
				if known := j.root(p.Generation, p.Part); !known.IsZero() && p.Root == known {
					rep.Parts = append(rep.Parts, p)
				}
			}
		}
		rep.Session, rep.Fenced, rep.Settled = node.Session, j.ClosedEpoch, true
		out.Reports[n], out.Connected[n] = rep, true
	}
	return out
}

// pinned is by life of a node what the record says that it holds.
func (in *PlanInput) pinned() map[replica.Holder][]replica.Held {
	out, j := make(map[replica.Holder][]replica.Held), in.Job
	add := func(g replica.Generation, parts []replica.PartRoot) {
		for _, p := range parts {
			for _, h := range p.Holders {
				out[h] = append(out[h], replica.Held{Part: p.Part, Generation: g, Root: p.Root, Mirror: true})
			}
		}
	}
	add(j.Committed, j.Parts)
	if j.Previous != nil {
		add(j.Previous.Generation, j.Previous.Parts)
	}
	return out
}

// shelf is what memory would have of one generation with nothing lost, so that a loss is counted by the parts that it touches.
type shelf struct {
	lots    []lot // in the order of the parts; without copies: memory lacks it
	missing []int // these
	on      map[replica.NodeName][]int
	tally
}

// tally counts the parts of a generation that stand in its way.
type tally struct{ lacking, lone, doubted int }

func (t *tally) count(j *replica.Job, l lot, by int) {
	switch {
	case len(l.copies) == 0:
		t.lacking += by
	case l.unvouched:
		t.lone += by
		if doubtful(j, []lot{l}) {
			t.doubted += by
		}
	}
}

func (o *outlook) shelfOf(g replica.Generation) *shelf {
	if s := o.shelf[g]; s != nil {
		return s
	}
	s, j, st := &shelf{lots: make([]lot, len(o.parts)), on: make(map[replica.NodeName][]int)}, o.then.record(), o.then.stock()
	o.shelf[g] = s
	for i, p := range o.parts {
		copies := st[g][p]
		s.lots[i] = o.settle(g, p, copies)
		if s.count(j.Job, s.lots[i], 1); len(s.lots[i].copies) == 0 {
			s.missing = append(s.missing, i)
		}
		for c := range copies {
			if n := copies[c].holder.Node; c == 0 || n != copies[c-1].holder.Node {
				s.on[n] = append(s.on[n], i)
			}
		}
	}
	return s
}

func (o *outlook) settle(g replica.Generation, p replica.Part, copies []sealed) lot {
	j := o.then.record()
	if l, ok := settleRoot(j, p, copies, j.root(g, p)); ok {
		return l
	}
	return lot{part: p}
}

// touched are the parts of a generation that some nodes have copies of, as they are without these, by place in the order of the parts.
func (o *outlook) touched(g replica.Generation, gone map[replica.NodeName]bool) map[int]lot {
	s, st, out := o.shelfOf(g), o.then.stock(), make(map[int]lot)
	for n := range gone {
		for _, i := range s.on[n] {
			if _, done := out[i]; !done {
				p := o.parts[i]
				out[i] = o.settle(g, p, slices.DeleteFunc(slices.Clone(st[g][p]), func(c sealed) bool { return gone[c.holder.Node] }))
			}
		}
	}
	return out
}

func (o *outlook) survives(l Loss) Survival {
	if l.Kept { // its copies serve, but for those that a quarantine makes void
		return o.quarantined(l)
	}
	gone := make(map[replica.NodeName]bool)
	for _, n := range slices.Concat(l.Nodes, l.Absent) {
		gone[n] = true
	}
	s := Survival{Loss: l, of: o, is: gone}
	s.Resume = o.resume(gone)
	o.lacks(&s)
	o.places(&s)
	for _, v := range l.voting() {
		if !gone[v] {
			s.Votes++
		}
	}
	return s
}

// quarantined answers for nodes that stay, and get no ranks and no copies any more.
func (o *outlook) quarantined(l Loss) Survival {
	job := *o.now.Job
	job.Quarantined = append(slices.Clone(job.Quarantined), l.Nodes...)
	s := newOutlook(o.now.fresh(&job)).survives(Loss{Absent: l.Absent})
	s.Loss, s.Votes = l, len(l.voting())
	return s
}

// resume is the newest generation that is left whole; zero: none.
func (o *outlook) resume(gone map[replica.NodeName]bool) replica.Generation {
	j := o.then.record()
	if _, times := split(j.Job); times > 1 {
		return replica.Generation{} // the planner goes back to the durable tier
	}
	g, _ := newest(j, o.gens, func(g replica.Generation) condition {
		s := o.shelfOf(g)
		t := s.tally
		for i, is := range o.touched(g, gone) {
			t.count(j.Job, s.lots[i], -1)
			t.count(j.Job, is, 1)
		}
		return condition{whole: t.lacking == 0 && t.doubted == 0, lone: t.lone > 0}
	})
	return g
}

// lacks finds the parts of the committed generation that would be lost.
func (o *outlook) lacks(s *Survival) {
	g := o.now.Job.Committed
	if g.IsZero() {
		return
	}
	shelf := o.shelfOf(g)
	lost := slices.Clone(shelf.missing) // before anything is lost
	for i, l := range o.touched(g, s.is) {
		if len(l.copies) == 0 && len(shelf.lots[i].copies) > 0 {
			lost = append(lost, i)
		}
	}
	slices.Sort(lost)
	s.Lacking = len(lost)
	for _, i := range lost[:min(len(lost), maxLacks)] {
		lack := Lack{Part: o.parts[i], Holders: nodesOf(shelf.lots[i])}
		if c, ok := o.reported(lack.Part, s.is); ok {
			lack.Older, lack.On = c.held.Generation, c.holder.Node
		}
		s.Lacks = append(s.Lacks, lack)
	}
}

// nodesOf names the nodes that hold a part.
func nodesOf(l lot) (out []replica.NodeName) {
	for _, c := range l.copies {
		if len(out) == 0 || out[len(out)-1] != c.holder.Node {
			out = append(out, c.holder.Node)
		}
	}
	return out
}

// reported is the newest of a part that the nodes which are left said to hold.
func (o *outlook) reported(p replica.Part, gone map[replica.NodeName]bool) (sealed, bool) {
	if o.older == nil {
		o.older = make(map[replica.Part][]sealed)
		for _, n := range slices.Sorted(maps.Keys(o.now.Nodes)) {
			rep := o.now.Reports[n]
			for _, h := range rep.Parts {
				o.older[h.Part] = append(o.older[h.Part], sealed{rep.Holder, h})
			}
		}
		for _, list := range o.older {
			slices.SortStableFunc(list, func(a, b sealed) int {
				return cmp.Or(newer(a.held.Generation, b.held.Generation), cmp.Compare(b.holder.Node, a.holder.Node))
			})
		}
	}
	list := o.older[p]
	if i := slices.IndexFunc(list, func(c sealed) bool { return !gone[c.holder.Node] }); i >= 0 {
		return list[i], true
	}
	return sealed{}, false
}

// places finds which ranks need a process elsewhere, and how many are offered.
func (o *outlook) places(s *Survival) {
	s.Offered = o.offered
	for n := range s.is {
		s.Offered -= o.offers[n]
	}
	for _, r := range o.vacant {
		if !slices.ContainsFunc(o.coming[r], func(n replica.NodeName) bool { return !s.is[n] }) { // no process for it is on its way
			s.Moves = append(s.Moves, r)
		}
	}
	for _, n := range s.Loss.Nodes {
		s.Moves = append(s.Moves, o.runs[n]...)
	}
	slices.Sort(s.Moves)
}

// able are the nodes that could be given ranks and mirrors, in the order of their names.
func (s Survival) able() []replica.NodeName {
	return slices.DeleteFunc(slices.Clone(s.of.able), func(n replica.NodeName) bool { return s.is[n] })
}

// InMemory tells whether memory alone would take the job on, with no committed step lost.
func (s Survival) InMemory() bool {
	j := s.of.now.Job
	return !s.Resume.IsZero() && !j.Committed.IsZero() && s.Resume.Step >= j.Position.Step
}

// Held says who would be left with each part of a generation, in the order of the parts; of a part that nobody would have, nobody.
func (s Survival) Held(g replica.Generation) []replica.PartHolders {
	shelf, is := s.of.shelfOf(g), s.of.touched(g, s.is)
	out := make([]replica.PartHolders, len(shelf.lots))
	for i, l := range shelf.lots {
		if n, touched := is[i]; touched {
			l = n
		}
		out[i].Part = l.part
		for k, c := range l.copies {
			if k == 0 || c.holder != l.copies[k-1].holder {
				out[i].Holders = append(out[i].Holders, c.holder)
			}
		}
	}
	return out
}

// Why says why the job would not go on by itself from memory; empty: it would.
func (s Survival) Why() (why []string) {
	j := s.of.now.Job
	if j.Phase != replica.Open {
		why = append(why, fmt.Sprintf("the job is %v: a recovery is under way", j.Phase))
	}
	if !s.InMemory() && !j.Committed.IsZero() {
		for _, l := range s.Lacks {
			why = append(why, l.text(j))
		}
		if more := s.Lacking - len(s.Lacks); more > 0 {
			why = append(why, fmt.Sprintf("and %d more parts", more))
		}
		if s.Lacking == 0 {
			why = append(why, fmt.Sprintf("step %d can't be resumed at, though memory has every part of it: it is disputed, condemned, or rests on one rank's word", j.Position.Step))
		}
	}
	if len(s.Moves) > s.Offered {
		why = append(why, fmt.Sprintf("%d processes would have to start elsewhere (ranks %s), other nodes offer %s: start `replicad run --spare` there", len(s.Moves), ranksText(s.Moves), s.seats()))
	}
	if !s.Quorate() {
		text := fmt.Sprintf("%d of %d voters would be left, which is no majority: nothing could be planned", s.Votes, len(s.Loss.Voters))
		if mute := s.Loss.Mute; len(mute) > 0 {
			text += fmt.Sprintf(" (%s do not vote now)", joinNames(mute, " and "))
			if len(mute) == 1 {
				text = strings.Replace(text, " do not vote", " does not vote", 1)
			}
		}
		why = append(why, text)
	}
	return why
}

// Quorate tells whether the loss leaves a majority that votes. A loss of nodes that do not vote leaves the one that there is.
func (s Survival) Quorate() bool {
	voting := s.Loss.voting()
	return 2*s.Votes > len(s.Loss.Voters) || !slices.ContainsFunc(s.Loss.Nodes, func(n replica.NodeName) bool { return slices.Contains(voting, n) }) || s.Loss.Kept
}

func (l Lack) text(j *replica.Job) string {
	by := "nobody"
	if len(l.Holders) > 0 {
		by = joinNames(l.Holders, " and ") + " alone"
	}
	text := fmt.Sprintf("%v of step %d is held by %s", l.Part, j.Position.Step, by)
	if l.On != "" {
		text += fmt.Sprintf("; node %s had step %d when it reported last", l.On, l.Older.Step)
	}
	switch {
	case j.Degraded:
		text += fmt.Sprintf(" (commits wait for %d copies, fewer than the job asks for)", j.Copies)
	case j.Copies < replica.DefaultMinCopies:
		text += fmt.Sprintf(" (commits wait for %d copies: --min-copies)", j.Copies)
	}
	return text
}

func joinNames(names []replica.NodeName, by string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return strings.Join(out, by)
}

func ranksText(ranks []replica.Rank) string {
	if len(ranks) > listed {
		return rankList(ranks).String()
	}
	out := make([]string, len(ranks))
	for i, r := range ranks {
		out[i] = fmt.Sprint(r)
	}
	return strings.Join(out, ", ")
}

// seats names the nodes that offer processes.
func (s Survival) seats() string {
	var out []string
	more := 0
	for _, n := range s.able() {
		switch k := s.of.offers[n]; {
		case k == 0:
		case len(out) < listed:
			out = append(out, fmt.Sprintf("%s: %d", n, k))
		default:
			more++
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("%d more nodes", more))
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// Unseated says that the ranks which run on the nodes could not all run elsewhere; empty: they could, or there are none.
func (s Survival) Unseated() string {
	here := 0
	for _, n := range s.Loss.Nodes {
		here += len(RanksOn(s.of.now.Job, n))
	}
	if here == 0 || len(s.Moves) <= s.Offered {
		return ""
	}
	text := fmt.Sprintf("it runs %d ranks there, and other nodes offer %d processes", here, s.Offered)
	if more := len(s.Moves) - here; more > 0 {
		text += fmt.Sprintf(", for which %d other ranks wait", more)
	}
	return text
}

// Cost says what the job gives up in safety while it does without the nodes, whose ranks move elsewhere; empty: nothing.
func (s Survival) Cost() string {
	j := s.of.now.Job
	able, costs := s.able(), []string(nil)
	if want := minCopies(j.Options); len(able) < want {
		costs = append(costs, fmt.Sprintf("each part of a step would lie on at most %d nodes instead of %d (degraded)", len(able), want))
	}
	if len(able) == 1 {
		after := "would end the job"
		if j.Options.DurableEvery > 0 || !j.Durable.IsZero() {
			after = "would take it back to its durable tier"
		}
		costs = append(costs, fmt.Sprintf("all its ranks would run on node %s, whose loss %s", able[0], after))
	}
	return strings.Join(append(costs, s.alone(able)...), "; ")
}

// alone says which parts of the committed step only the nodes hold that are lost, and others that can't be relied on.
func (s Survival) alone(able []replica.NodeName) []string {
	g := s.of.now.Job.Committed
	if g.IsZero() {
		return nil
	}
	var parts []string
	for _, l := range s.of.shelfOf(g).lots {
		held := nodesOf(l)
		among := func(names []replica.NodeName) bool {
			return slices.ContainsFunc(held, func(n replica.NodeName) bool { return slices.Contains(names, n) })
		}
		if among(s.Loss.Nodes) && !among(able) {
			parts = append(parts, l.part.String())
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("until its ranks run elsewhere, node %s alone holds %s of the committed step %d", joinNames(s.Loss.Nodes, ", "), strings.Join(parts[:min(len(parts), maxLacks)], ", "), s.of.now.Job.Position.Step)}
}

// Domains are the failure domains that several nodes share and others do not, by label and value ("rack r1"), with their nodes in the order of
// their names.
func Domains(nodes map[replica.NodeName]replica.Node) map[string][]replica.NodeName {
	out := make(map[string][]replica.NodeName)
	for _, n := range slices.Sorted(maps.Keys(nodes)) {
		for _, h := range harms {
			if v := nodes[n].Labels[h.label]; v != "" {
				name := h.label + " " + v
				out[name] = append(out[name], n)
			}
		}
	}
	maps.DeleteFunc(out, func(_ string, of []replica.NodeName) bool { return len(of) < 2 || len(of) == len(nodes) })
	return out
}

// Known is what the planner would get now, for Survives, beside the Leader's goroutine too; ok is false before the first change of the job.
func (l *Leader) Known() (in PlanInput, ok bool) {
	if l.known.job == nil {
		return in, false
	}
	in = *l.input().fresh(l.known.job.Job)
	in.AwaySince, in.Misfit = nil, nil // these change with the Leader
	return in, true
}
