package lock

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/replicad/replicad/replica"
)

// tally counts what nodes answered to the present candidate, part by part, as it comes. An answer costs a look at its part, and a group is
// judged only once all its live members have answered: a commit costs its answers, not its answers times its parts.
//
// Invariant: it counts the pins whose word counts now, all and no others, as one that is made anew does. Committer.Check compares the two.
type tally struct {
	job     *replica.Job
	members [][]replica.Rank
	parts   []count           // groups, then ranks, as a commit lists them
	live    []bool            // by rank: its group waits for its answer
	made    []bool            // by rank: that has come
	open    int               // parts that are not complete
	split   []replica.GroupID // groups whose votes differ, in order
	looked  int               // answers that were looked at since the candidate was named: what tests count
}

// count is what was answered about one part.
type count struct {
	answers []answer
	live    int // members that are waited for
	missing int // of them, those that have not answered; of a private part 1 or 0
	votes   votes
	whole   bool
	part    replica.PartRoot // once it is whole
}

// answer is one node's pins of one part.
type answer struct {
	holder replica.Holder
	held   replica.Held
	n      int // it came as this one about its part
}

// begin counts anew, for the job as it is now. What was allocated is used again.
func (t *tally) begin(j *replica.Job) {
	t.job, t.members = j, j.Layout.Members()
	groups, ranks := len(t.members), len(j.Ranks)
	t.parts = slices.Grow(t.parts[:0], groups+ranks)[:groups+ranks]
	t.live, t.made = slices.Grow(t.live[:0], ranks)[:ranks], slices.Grow(t.made[:0], ranks)[:ranks]
	for r, c := range j.Ranks {
		t.live[r] = c.Incarnation != 0 && !ClaimFaulted(j, replica.Rank(r), c, false)
	}
	t.open, t.split = len(t.parts), t.split[:0]
	for i := range t.parts {
		t.clear(i)
	}
}

// clear forgets what was answered about a part.
func (t *tally) clear(i int) {
	p := &t.parts[i]
	*p = count{answers: p.answers[:0], missing: 1}
	if i >= len(t.members) {
		return
	}
	for _, r := range t.members[i] {
		t.made[r] = false
		if t.live[r] {
			p.live++
		}
	}
	p.missing = p.live
	t.split = slices.DeleteFunc(t.split, func(g replica.GroupID) bool { return int(g) == i })
}

// index is the place of a part in a commit; false: the job has no such part.
func (t *tally) index(p replica.Part) (int, bool) {
	groups := len(t.members)
	if !isPart(p, groups, len(t.job.Ranks)) {
		return 0, false
	}
	if p.Kind == replica.PrivatePart {
		return groups + int(p.Index), true
	}
	return int(p.Index), true
}

// add counts what a node holds.
func (t *tally) add(by replica.Holder, held ...replica.Held) {
	for _, h := range held {
		if i, ok := t.index(h.Part); ok {
			t.put(i, answer{holder: by, held: h})
			t.judge(i)
		}
	}
}

// drop takes back what a node answered.
func (t *tally) drop(node replica.NodeName, held []replica.Held) {
	from := func(a answer) bool { return a.holder.Node == node }
	for _, h := range held {
		if i, ok := t.index(h.Part); ok && slices.ContainsFunc(t.parts[i].answers, from) {
			t.recount(i, from)
		}
	}
}

// recount counts a part anew, without some of its answers.
func (t *tally) recount(i int, without func(answer) bool) {
	rest := slices.DeleteFunc(t.parts[i].answers, without)
	if t.parts[i].whole {
		t.open++
	}
	t.clear(i)
	for _, a := range rest { // each is put back where it lies
		t.put(i, a)
	}
	t.judge(i)
}

// put counts an answer and its vote.
func (t *tally) put(i int, a answer) {
	p, r := &t.parts[i], a.held.Rank
	a.n = len(p.answers)
	p.answers = append(p.answers, a)
	t.looked++
	if int(r) >= len(t.job.Ranks) || !produced(a, r, t.job.Ranks[r]) {
		return
	}
	if i >= len(t.members) {
		if int(a.held.Part.Index) == int(r) {
			p.missing = 0
		}
		return
	}
	g := replica.GroupID(i)
	if t.job.Layout.Groups[r] != g || !t.live[r] || t.made[r] {
		return
	}
	t.made[r] = true
	p.missing--
	if a.held.DaemonMade || nondeterministic(t.job, g) {
		return
	}
	p.votes.add(a.held.Root)
	if at, in := slices.BinarySearch(t.split, g); p.votes.differ() && !in {
		t.split = slices.Insert(t.split, at, g)
	}
}

// judge tells whether a part is whole now.
func (t *tally) judge(i int) {
	p := &t.parts[i]
	was := p.whole
	if p.whole = false; p.missing == 0 && !p.votes.differ() && len(p.answers) >= t.job.Copies {
		p.part, p.whole = t.part(i, nil)
	}
	switch {
	case p.whole && !was:
		t.open--
	case !p.whole && was:
		t.open++
	}
}

// commit is what the answers justify: the commit once every part is whole, else nil.
func (t *tally) commit(c replica.Candidate) replica.Command {
	if t.open > 0 {
		return nil
	}
	parts := make([]replica.PartRoot, len(t.parts))
	for i := range t.parts {
		parts[i] = t.parts[i].part
	}
	return replica.Commit{Job: t.job.ID, Position: c.Position, Generation: c.Generation, Parts: parts, Write: IsMultiple(t.job, c.Position.Step) && t.job.Writer == nil}
}

// dispute is the first group whose vote is decided, though its roots differ; false: there is none.
func (t *tally) dispute() (replica.GroupID, bool) {
	for _, g := range t.split {
		if p := &t.parts[g]; p.votes.decided(p.live) {
			return g, true
		}
	}
	return 0, false
}

// same tells where two counts differ. Nil: nowhere.
func (t *tally) same(o *tally) error {
	if t.open != o.open || len(t.parts) != len(o.parts) || !slices.Equal(t.split, o.split) {
		return fmt.Errorf("%d of %d parts open, groups %v split: want %d of %d, %v", t.open, len(t.parts), t.split, o.open, len(o.parts), o.split)
	}
	for i := range t.parts {
		a, b := &t.parts[i], &o.parts[i]
		if a.whole != b.whole || a.missing != b.missing || len(a.answers) != len(b.answers) || a.whole && !reflect.DeepEqual(a.part, b.part) {
			return fmt.Errorf("part %d: %+v, want %+v", i, a, b)
		}
	}
	return nil
}

// votes are the roots that members of a group report, each once.
type votes struct {
	by   map[replica.Digest]int
	n    int
	most int // for one root
}

func (v *votes) add(root replica.Digest) {
	if v.by == nil {
		v.by = map[replica.Digest]int{}
	}
	v.n++
	v.by[root]++
	v.most = max(v.most, v.by[root])
}

func (v *votes) differ() bool { return len(v.by) > 1 }

// decided tells whether a root has a majority of so many members, or all of them have voted.
func (v *votes) decided(live int) bool { return 2*v.most > live || v.n == live }
