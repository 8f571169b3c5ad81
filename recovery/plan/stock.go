package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Newer orders generations of one history: by step, then epoch.
func Newer(a, b replica.Generation) int {
	return cmp.Or(cmp.Compare(b.Step, a.Step), cmp.Compare(b.Epoch, a.Epoch))
}

// eligible tells whether a generation may be resumed at, whoever holds it.
func eligible(j *replica.Job, g replica.Generation) bool {
	if !j.Lineage.Valid(g) || slices.Contains(j.Condemned, g) || g.Epoch < j.Grown { // before it grew its regions were others
		return false
	}
	for _, d := range j.Disputed {
		// What was computed from a disputed state is no better than it.
		if d.Generation.Step <= g.Step && (d.Generation.Epoch == j.Epoch || j.Lineage.Valid(d.Generation)) {
			return false
		}
	}
	return true
}

// Parts lists the parts of every generation of a layout: one a group, then one a rank.
func Parts(l replica.Layout) []replica.Part {
	groups := 0
	for _, g := range l.Groups {
		groups = max(groups, int(g)+1)
	}
	out := make([]replica.Part, 0, groups+len(l.Groups))
	for g := range groups {
		out = append(out, replica.OfGroup(replica.GroupID(g)))
	}
	for r := range l.Groups {
		out = append(out, replica.OfRank(replica.Rank(r)))
	}
	return out
}

// Current is the report of a node's registered session, if it is connected.
func (in *Input) Current(n replica.NodeName) (replica.NodeReport, bool) {
	rep, ok := in.Reports[n]
	node, known := in.Nodes[n]
	return rep, ok && known && in.Connected[n] && rep.Holder == replica.Holder{Node: n, Incarnation: node.Incarnation} && rep.Session == node.Session
}

// Acknowledged is the report of a node that has raised the fence and settled: its account of sealed parts is whole.
func (in *Input) Acknowledged(n replica.NodeName) (replica.NodeReport, bool) {
	rep, ok := in.Current(n)
	return rep, ok && rep.Fenced >= in.Job.ClosedEpoch && rep.Settled
}

// Answered is the report of a node that acknowledged and whose word counts. One that was taken for dead or silent and
// acknowledges now first has its fault ended (see revive in package recovery): until then it is neither a holder nor proved to be none.
func (in *Input) Answered(n replica.NodeName) (replica.NodeReport, bool) {
	rep, ok := in.Acknowledged(n)
	return rep, ok && !in.Record().HolderGone(rep.Holder)
}

// Usable are the nodes that may take mirrors: they answer and nothing is held against them.
func (in *Input) Usable() map[replica.NodeName]bool {
	if in.counted.use != nil {
		return in.counted.use
	}
	in.counted.use = make(map[replica.NodeName]bool)
	for n, node := range in.Nodes {
		_, ok := in.Current(n)
		in.counted.use[n] = ok && in.Record().Admits(replica.Holder{Node: n, Incarnation: node.Incarnation})
	}
	return in.counted.use
}

// Record is the job with what follows from it.
func (in *Input) Record() *Record {
	if in.counted.rec == nil {
		in.counted.rec = NewRecord(in.Job)
	}
	return in.counted.rec
}

// Sealed is one sealed copy of a part.
type Sealed struct {
	Holder replica.Holder
	Held   replica.Held
}

// stock is who holds which part of which generation, by the nodes that answered.
type stock map[replica.Generation]map[replica.Part][]Sealed

func (in *Input) Stock() stock {
	if in.counted.stock != nil {
		return in.counted.stock
	}
	j, st := in.Record(), make(stock)
	in.counted.stock = st
	names := make([]replica.NodeName, 0, len(in.Nodes))
	for n := range in.Nodes {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		rep, ok := in.Answered(n)
		if !ok || slices.Contains(j.Proved, rep.Holder) {
			continue
		}
		void := voidGroups(j.Job, n)
		for _, h := range rep.Parts {
			if fromHeir(j.Job, h) || in.doubts(rep.Holder, h) || void[h.Part] && h.Root != j.Root(h.Generation, h.Part) {
				continue
			}
			if st[h.Generation] == nil {
				st[h.Generation] = make(map[replica.Part][]Sealed)
			}
			st[h.Generation][h.Part] = append(st[h.Generation][h.Part], Sealed{rep.Holder, h})
		}
	}
	return st
}

// fromHeir tells whether a part of the last epoch that was opened was sealed by a process that claimed its rank since: claims end before
// an epoch opens, so that process has never had that epoch's state, whatever it says of it.
func fromHeir(j *replica.Job, h replica.Held) bool {
	return j.OpenedWith != 0 && h.Generation.Epoch == j.Lineage.Last().Epoch && h.Producer > j.OpenedWith
}

// Lot is one part of a generation as it can be had: under one root, from those holders.
type Lot struct {
	Part      replica.Part
	root      replica.Digest
	Copies    []Sealed // none: from disk
	Unvouched bool     // fewer than two producers speak for it, though the group has more
}

// SettleRoot decides under which root the copies of a part are taken. known is the root that a commit or durable marker
// named; without one the producing ranks must agree, and mirrors and daemon-made digests count only where no producer is left.
func SettleRoot(j *Record, part replica.Part, copies []Sealed, known replica.Digest) (Lot, bool) {
	l := Lot{Part: part, root: known}
	if known.IsZero() {
		root, voices, ok := agreedRoot(j.Job, part, copies)
		if !ok {
			return l, false
		}
		l.root = root
		l.Unvouched = part.Kind == replica.ReplicatedPart && voices < 2 && len(j.MembersOf(replica.GroupID(part.Index))) > 1
	}
	for _, c := range copies {
		if c.Held.Root == l.root {
			l.Copies = append(l.Copies, c)
		}
	}
	return l, len(l.Copies) > 0
}

// produced tells whether the copy is its rank's own word.
func (s Sealed) produced() bool { return !s.Held.Mirror && !s.Held.DaemonMade && !s.Held.Fetched }

// speakers are the copies that say what a part's root is, by rank: those of producers, or all where none is left.
func speakers(copies []Sealed) []Sealed {
	speaking := slices.DeleteFunc(slices.Clone(copies), func(s Sealed) bool { return !s.produced() })
	if len(speaking) == 0 {
		speaking = slices.Clone(copies)
	}
	slices.SortStableFunc(speaking, func(a, b Sealed) int { return cmp.Compare(a.Held.Rank, b.Held.Rank) })
	return speaking
}

// agreedRoot is the root that all who speak for a part name, and how many ranks produced it.
func agreedRoot(j *replica.Job, part replica.Part, copies []Sealed) (root replica.Digest, voices int, ok bool) {
	speaking := speakers(copies)
	if len(speaking) == 0 {
		return root, 0, false
	}
	produced := speaking[0].produced()
	root = speaking[0].Held.Root
	// In a group that declared itself non-deterministic every member loads the lowest rank's state.
	own := part.Kind == replica.ReplicatedPart && int(part.Index) < len(j.Options.Nondeterministic) && j.Options.Nondeterministic[part.Index]
	for i, c := range speaking {
		if c.Held.Root != root && !own {
			return root, 0, false
		}
		if produced && (i == 0 || c.Held.Rank != speaking[i-1].Held.Rank) {
			voices++
		}
	}
	return root, voices, true
}

// assemble takes every part of g from memory, or from a durable generation where disk is given.
func (st stock) assemble(j *Record, g replica.Generation, disk *DurableGen) (lots []Lot, missing []replica.Part) {
	for _, part := range Parts(j.Layout) {
		known := j.Root(g, part)
		if disk != nil {
			onDisk, ok := disk.Parts[part]
			if !ok || onDisk.IsZero() || !known.IsZero() && known != onDisk {
				missing = append(missing, part)
				continue
			}
			known = onDisk
		}
		l, ok := SettleRoot(j, part, st[g][part], known)
		if !ok && disk == nil {
			missing = append(missing, part)
			continue
		}
		lots = append(lots, l)
	}
	return lots, missing
}

func unvouched(lots []Lot) bool {
	return slices.ContainsFunc(lots, func(l Lot) bool { return l.Unvouched })
}

// Newest is the newest eligible generation that memory alone can assemble, and its parts.
func (st stock) Newest(j *Record) (replica.Generation, []Lot, bool) {
	assembled := make(map[replica.Generation][]Lot)
	g, found := Newest(j, st.Generations(), func(g replica.Generation) Condition {
		lots, missing := st.assemble(j, g, nil)
		assembled[g] = lots
		return Condition{Whole: len(missing) == 0 && !Doubtful(j.Job, lots), Lone: unvouched(lots)}
	})
	return g, assembled[g], found
}

// Generations lists those of which memory has some part, newest first.
func (st stock) Generations() []replica.Generation {
	return slices.SortedFunc(maps.Keys(st), Newer)
}

// Condition is what memory has of a generation.
type Condition struct {
	Whole bool // every part, and none that is in doubt
	Lone  bool // some part rests on the word of a sole producer
}

// Newest picks the newest eligible generation that is whole, of some in falling order. One that rests on the word of a sole producer gives way
// to one that does not, at or above the committed step and few enough steps older (Options.LoneAhead): nobody could tell if that word is wrong.
func Newest(j *Record, gens []replica.Generation, judge func(replica.Generation) Condition) (best replica.Generation, found bool) {
	var lone replica.Generation
	alone := false // there is one
	for _, g := range gens {
		if !eligible(j.Job, g) {
			continue
		}
		switch c := judge(g); {
		case !c.Whole:
		case !c.Lone:
			if alone && (!nearEnough(j.Job, lone, g) || g.Step < j.Position.Step) {
				return lone, true
			}
			return g, true
		case !alone && !j.Options.RequireVotes:
			lone, alone = g, true
		}
	}
	return lone, alone
}

// nearEnough tells whether a vouched generation is so few steps older than a lone one that it is taken instead.
func nearEnough(j *replica.Job, lone, vouched replica.Generation) bool {
	ahead := j.Options.LoneAhead
	if ahead == 0 {
		ahead = replica.DefaultLoneAhead
	}
	return lone.Step < vouched.Step+ahead
}
