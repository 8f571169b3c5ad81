package odds

import (
	"cmp"
	"maps"
	"slices"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/recovery/plan"
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

// Survives says for each loss whether the job would survive it, from which generation and holders each part would come back, and if not, why
// not. It asks the rules that Plan follows: the answer is what Plan would decide once the epoch is closed and every other node has answered.
// While an epoch is open a node is relied on for what it must keep until the next commit, and for nothing else.
func Survives(in plan.Input, losses ...Loss) []Survival {
	o, out := newOutlook(&in), make([]Survival, len(losses))
	for i, l := range losses {
		out[i] = o.survives(l)
	}
	return out
}

// outlook is what the nodes of a job could serve, were its epoch closed now.
type outlook struct {
	now     *plan.Input                         // what is known
	then    *plan.Input                         // what the planner would get
	able    []replica.NodeName                  // could be given ranks and mirrors, in order
	offers  map[replica.NodeName]int            // of these
	offered int                                 // all of them
	coming  map[replica.Rank][]replica.NodeName // of these, that run a process for the rank which has not attached
	vacant  []replica.Rank
	runs    map[replica.NodeName][]replica.Rank // claims
	gens    []replica.Generation                // newest first
	parts   []replica.Part
	shelf   map[replica.Generation]*shelf
	older   map[replica.Part][]plan.Sealed // what was reported, newest first; made when it is first asked for
}

func newOutlook(known *plan.Input) *outlook {
	in := known.Fresh(known.Job)
	o := &outlook{now: in, then: in.Fenced(), offers: make(map[replica.NodeName]int), coming: make(map[replica.Rank][]replica.NodeName),
		runs:  make(map[replica.NodeName][]replica.Rank),
		parts: plan.Parts(in.Job.Layout), shelf: make(map[replica.Generation]*shelf)}
	o.gens = o.then.Stock().Generations()
	usable := in.Usable()
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
		if in.Record().Vacant(replica.Rank(r)) {
			o.vacant = append(o.vacant, replica.Rank(r))
		} else {
			o.runs[c.Node] = append(o.runs[c.Node], replica.Rank(r))
		}
	}
	return o
}

// shelf is what memory would have of one generation with nothing lost, so that a loss is counted by the parts that it touches.
type shelf struct {
	lots    []plan.Lot // in the order of the parts; without copies: memory lacks it
	missing []int      // these
	on      map[replica.NodeName][]int
	tally
}

// tally counts the parts of a generation that stand in its way.
type tally struct{ lacking, lone, doubted int }

func (t *tally) count(j *replica.Job, l plan.Lot, by int) {
	switch {
	case len(l.Copies) == 0:
		t.lacking += by
	case l.Unvouched:
		t.lone += by
		if plan.Doubtful(j, []plan.Lot{l}) {
			t.doubted += by
		}
	}
}

func (o *outlook) shelfOf(g replica.Generation) *shelf {
	if s := o.shelf[g]; s != nil {
		return s
	}
	s, j, st := &shelf{lots: make([]plan.Lot, len(o.parts)), on: make(map[replica.NodeName][]int)}, o.then.Record(), o.then.Stock()
	o.shelf[g] = s
	for i, p := range o.parts {
		copies := st[g][p]
		s.lots[i] = o.settle(g, p, copies)
		if s.count(j.Job, s.lots[i], 1); len(s.lots[i].Copies) == 0 {
			s.missing = append(s.missing, i)
		}
		for c := range copies {
			if n := copies[c].Holder.Node; c == 0 || n != copies[c-1].Holder.Node {
				s.on[n] = append(s.on[n], i)
			}
		}
	}
	return s
}

func (o *outlook) settle(g replica.Generation, p replica.Part, copies []plan.Sealed) plan.Lot {
	j := o.then.Record()
	if l, ok := plan.SettleRoot(j, p, copies, j.Root(g, p)); ok {
		return l
	}
	return plan.Lot{Part: p}
}

// touched are the parts of a generation that some nodes have copies of, as they are without these, by place in the order of the parts.
func (o *outlook) touched(g replica.Generation, gone map[replica.NodeName]bool) map[int]plan.Lot {
	s, st, out := o.shelfOf(g), o.then.Stock(), make(map[int]plan.Lot)
	for n := range gone {
		for _, i := range s.on[n] {
			if _, done := out[i]; !done {
				p := o.parts[i]
				out[i] = o.settle(g, p, slices.DeleteFunc(slices.Clone(st[g][p]), func(c plan.Sealed) bool { return gone[c.Holder.Node] }))
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
	s := newOutlook(o.now.Fresh(&job)).survives(Loss{Absent: l.Absent})
	s.Loss, s.Votes = l, len(l.voting())
	return s
}

// resume is the newest generation that is left whole; zero: none.
func (o *outlook) resume(gone map[replica.NodeName]bool) replica.Generation {
	j := o.then.Record()
	if _, times := plan.Split(j.Job); times > 1 {
		return replica.Generation{} // the planner goes back to the durable tier
	}
	g, _ := plan.Newest(j, o.gens, func(g replica.Generation) plan.Condition {
		s := o.shelfOf(g)
		t := s.tally
		for i, is := range o.touched(g, gone) {
			t.count(j.Job, s.lots[i], -1)
			t.count(j.Job, is, 1)
		}
		return plan.Condition{Whole: t.lacking == 0 && t.doubted == 0, Lone: t.lone > 0}
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
		if len(l.Copies) == 0 && len(shelf.lots[i].Copies) > 0 {
			lost = append(lost, i)
		}
	}
	slices.Sort(lost)
	s.Lacking = len(lost)
	for _, i := range lost[:min(len(lost), maxLacks)] {
		lack := Lack{Part: o.parts[i], Holders: nodesOf(shelf.lots[i])}
		if c, ok := o.reported(lack.Part, s.is); ok {
			lack.Older, lack.On = c.Held.Generation, c.Holder.Node
		}
		s.Lacks = append(s.Lacks, lack)
	}
}

// nodesOf names the nodes that hold a part.
func nodesOf(l plan.Lot) (out []replica.NodeName) {
	for _, c := range l.Copies {
		if len(out) == 0 || out[len(out)-1] != c.Holder.Node {
			out = append(out, c.Holder.Node)
		}
	}
	return out
}

// reported is the newest of a part that the nodes which are left said to hold.
func (o *outlook) reported(p replica.Part, gone map[replica.NodeName]bool) (plan.Sealed, bool) {
	if o.older == nil {
		o.older = make(map[replica.Part][]plan.Sealed)
		for _, n := range slices.Sorted(maps.Keys(o.now.Nodes)) {
			rep := o.now.Reports[n]
			for _, h := range rep.Parts {
				o.older[h.Part] = append(o.older[h.Part], plan.Sealed{Holder: rep.Holder, Held: h})
			}
		}
		for _, list := range o.older {
			slices.SortStableFunc(list, func(a, b plan.Sealed) int {
				return cmp.Or(plan.Newer(a.Held.Generation, b.Held.Generation), cmp.Compare(b.Holder.Node, a.Holder.Node))
			})
		}
	}
	list := o.older[p]
	if i := slices.IndexFunc(list, func(c plan.Sealed) bool { return !gone[c.Holder.Node] }); i >= 0 {
		return list[i], true
	}
	return plan.Sealed{}, false
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

// Domains are the failure domains that several nodes share and others do not, by label and value ("rack r1"), with their nodes in the order of
// their names.
func Domains(nodes map[replica.NodeName]replica.Node) map[string][]replica.NodeName {
	out := make(map[string][]replica.NodeName)
	for _, n := range slices.Sorted(maps.Keys(nodes)) {
		for _, h := range place.Harms {
			if v := nodes[n].Labels[h.Label]; v != "" {
				name := h.Label + " " + v
				out[name] = append(out[name], n)
			}
		}
	}
	maps.DeleteFunc(out, func(_ string, of []replica.NodeName) bool { return len(of) < 2 || len(of) == len(nodes) })
	return out
}

// CanLeave tells whether the job can do without a node: others offer enough processes for its ranks, and what they hold, and what
// of its own still counts once it is quarantined, makes as new a generation.
func CanLeave(in *plan.Input, node replica.NodeName) bool {
	all := Survives(*in, Loss{}, Loss{Nodes: []replica.NodeName{node}, Kept: true})
	now, left := all[0], all[1]
	return left.Offered >= len(left.Moves) && !now.Resume.IsZero() && !left.Resume.IsZero() && plan.Newer(left.Resume, now.Resume) <= 0
}
