package lock

import (
	"errors"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Effect is what the driver has to do next, in the order given: Announce or Propose.
type Effect interface{ effect() }

type (
	// Announce sends a candidate to every node of the job, on the commit stream.
	Announce struct{ Candidate replica.Candidate }
	// Propose puts a command into the log; its outcome comes back through Outcome.
	Propose struct{ Command replica.Command }
)

func (Announce) effect() {}
func (Propose) effect()  {}

// Committer is the leader's rule for one job in one term (protocol sections 5.1 to 5.3): it names candidates, counts pins,
// and proposes the commit, the dispute, or another copies(p). It is soft state: a new leader makes its own, after its
// barrier, and hears everything again. One goroutine owns it.
//
// Invariants: only pins of the current (term, n), of the registered incarnation and session of a node that is neither at
// fault nor quarantined, count; no candidate is named while a proposal of its own is unresolved (refused is resolved);
// n rises, and so do, within an epoch, steps of candidates, but for one that falls back to what all hold who stand on purpose.
type Committer struct {
	term uint64
	job  *replica.Job
	node map[replica.NodeName]replica.Node

	candidate replica.Candidate // before the first one it has a number alone
	live      bool              // the candidate stands: it is of the open epoch and newer than the position
	pins      map[replica.NodeName]*pins
	passed    map[replica.Rank]replica.Passed // since the last commit, the latest of each rank
	stands    map[replica.Rank]replica.Passed // since the last commit, who said that it stands below its candidate on purpose
	lapsed    bool                            // some rank passed the present candidate
	failures  int                             // candidates that lapsed since the last commit
	lead      lead
	late      map[replica.NodeName]uint64 // nodes whose link was lost, and the candidate that they heard of when it was back: of no use as a measure

	stride   replica.Step // steps between two commits of the epoch that nothing held up, less what was skipped between them; 0: none were seen
	skipped  replica.Step // steps that the present candidate lies further ahead for the sake of the durable tier
	possible int          // copies(p) as the nodes allow
	pending  []*proposal
	refused  bool // a proposal was refused: look again only at something new
	disputed []replica.Generation
	tally    tally  // of the candidate, while it is live
	told     *waits // since the last event; nil: nobody asked
	heard    *heard // before the first candidate of the term; nil: nobody is listened to
}

// pins is what one node answered to the present candidate. Parts add up.
type pins struct {
	holder  replica.Holder
	session replica.Session
	parts   []replica.Held
}

// proposal is a command whose outcome isn't known. Lost says that its caller gave up: read, then propose it again, since
// commands are idempotent.
type proposal struct {
	command replica.Command
	on      *replica.Job // as it was then
	lost    bool
}

// NewCommitter begins a term, once its barrier has passed. named is the highest number of a candidate that the same leader has named before: one that
// could not write its log may lead again in the same term, and nodes take a lower number for an old one.
func NewCommitter(term, named uint64) *Committer {
	return &Committer{term: term, candidate: replica.Candidate{N: named}, pins: map[replica.NodeName]*pins{}, passed: map[replica.Rank]replica.Passed{}, stands: map[replica.Rank]replica.Passed{}, late: map[replica.NodeName]uint64{}}
}

// Candidate is the one that stands; nodes that connect later are told it again.
func (c *Committer) Candidate() (replica.Candidate, bool) { return c.candidate, c.live }

// Started tells whether a node has pinned some part of the candidate: what is missing since then is late.
func (c *Committer) Started() bool { return c.live && len(c.pins) > 0 }

// Job tells what was applied: call it at the start of the term and after each change of the job or of the nodes.
func (c *Committer) Job(j *replica.Job, nodes map[replica.NodeName]replica.Node) []Effect {
	committed := c.job != nil && j.Position != c.job.Position
	if c.job != nil && j.Epoch != c.job.Epoch {
		c.lead.reset()
		c.stride = 0
	} else if committed && c.job.Position.Epoch == j.Position.Epoch && c.failures == 0 { // else each later candidate would be as far ahead
		c.stride = j.Position.Step - min(j.Position.Step, c.job.Position.Step+c.skipped)
	}
	if committed && c.candidate.Generation == j.Committed {
		c.lead.committed(c.candidate.N)
	}
	if c.job != nil && c.job.Writer != nil && j.Writer == nil {
		c.failures = min(c.failures, 1) // the slot that they lacked may be free
	}
	c.job, c.node = j, nodes
	c.heard = c.heard.follow(j)
	c.possible = c.possibleCopies()
	if committed {
		c.passed, c.stands, c.failures = map[replica.Rank]replica.Passed{}, map[replica.Rank]replica.Passed{}, 0
	}
	if c.live && (j.Phase != replica.Open || c.candidate.Position.Epoch != j.Epoch || c.candidate.Position.Step <= j.Position.Step) {
		c.live = false // a position at or after it, or a fault of its epoch
	}
	if c.live {
		c.count(&c.tally)
	}
	return c.Look()
}

// Look asks again though nothing has changed: an outcome that stayed unknown brings no event of its own.
func (c *Committer) Look() []Effect {
	if c.job == nil {
		return nil
	}
	c.refused = false
	c.pending = slices.DeleteFunc(c.pending, func(p *proposal) bool { return c.applied(p.command) })
	return c.next()
}

// count counts the pins that are there.
func (c *Committer) count(t *tally) {
	t.begin(c.job)
	for _, p := range c.pins {
		if c.counts(p.holder, p.session) {
			t.add(p.holder, p.parts...)
		}
	}
}

// Check tells how what was counted differs from what one counts anew. Builds with the race detector ask after each event; that costs time in
// proportion to all that was answered.
func (c *Committer) Check() error {
	if c.job == nil || !c.live {
		return nil
	}
	var anew tally
	c.count(&anew)
	return c.tally.same(&anew)
}

// applied tells whether the job shows that a proposal has taken effect.
func (c *Committer) applied(cmd replica.Command) bool {
	switch cmd := cmd.(type) {
	case replica.Commit:
		return c.job.Position == cmd.Position && c.job.Committed == cmd.Generation
	case replica.SetCopies:
		return c.job.Copies == cmd.Copies
	case replica.ReportDispute:
		return slices.ContainsFunc(c.job.Disputed, func(d replica.Dispute) bool {
			return d.Group == cmd.Dispute.Group && d.Generation == cmd.Dispute.Generation
		})
	}
	return false
}

// Pinned takes a node's answer. One of another candidate or of an older session is dropped.
func (c *Committer) Pinned(p replica.Pinned) []Effect {
	c.learn(p.Job, p.Term, p.N, p.Holder.Node, p.Generation.Epoch, p.Heard, p.Live)
	if !c.answers(p.Job, p.Term, p.N) || p.Generation != c.candidate.Generation {
		return nil
	}
	known := c.pins[p.Holder.Node]
	if known != nil && known.holder == p.Holder && p.Session < known.session {
		return nil
	}
	if known == nil || known.holder != p.Holder || known.session != p.Session {
		c.forget(p.Holder.Node)
		known = &pins{holder: p.Holder, session: p.Session}
		c.pins[p.Holder.Node] = known
	}
	before := len(known.parts)
	known.parts = slices.Grow(known.parts, len(p.Parts))
	for _, h := range p.Parts {
		if h.Generation == c.candidate.Generation && !slices.Contains(known.parts, h) {
			known.parts = append(known.parts, h)
		}
	}
	if c.counts(p.Holder, p.Session) {
		c.tally.add(p.Holder, known.parts[before:]...)
	}
	c.refused = false
	return c.next()
}

// Passed takes the answer of a node whose rank will not capture the candidate.
func (c *Committer) Passed(p replica.Passed) []Effect {
	c.learn(p.Job, p.Term, p.N, p.Holder.Node, p.Live.Epoch, p.Heard, p.Live.Step)
	if !c.answers(p.Job, p.Term, p.N) || int(p.Rank) >= len(c.job.Ranks) || !c.counts(p.Holder, p.Session) || c.job.Ranks[p.Rank].Node != p.Holder.Node || p.Live.Epoch != c.job.Epoch {
		return nil
	}
	if p.Below(c.candidate) {
		c.stands[p.Rank] = p
	} else {
		c.passed[p.Rank], c.lapsed = p, true
		delete(c.stands, p.Rank)
	}
	c.refused = false
	return c.next()
}

// learn takes from an answer, of this candidate or of one that was given up, where the ranks are and how late it was heard of.
func (c *Committer) learn(job replica.JobID, term, n uint64, node replica.NodeName, e replica.Epoch, heard, live replica.Step) {
	if c.job == nil || job != c.job.ID || term != c.term || e != c.job.Epoch || max(heard, live) > replica.MaxStep {
		return
	}
	c.lead.sees(max(heard, live))
	if first, ok := c.late[node]; ok && (first == 0 || first == n) {
		c.late[node] = n
		return
	}
	delete(c.late, node)
	c.lead.heard(n, heard)
}

func (c *Committer) answers(job replica.JobID, term, n uint64) bool {
	return c.job != nil && c.live && job == c.job.ID && term == c.term && n == c.candidate.N
}

// counts tells whether a node's answer counts now.
func (c *Committer) counts(h replica.Holder, s replica.Session) bool {
	return checkHolder(c.job, c.node, h) == nil && c.node[h.Node].Session == s
}

// Voided drops what a node answered: it registered anew, or it is at fault. It counts again once it answers again.
func (c *Committer) Voided(node replica.NodeName) []Effect {
	c.forget(node)
	c.late[node] = 0
	if c.heard != nil {
		delete(c.heard.of, node)
	}
	for r, p := range c.passed {
		if p.Holder.Node == node {
			delete(c.passed, r)
		}
	}
	for r, p := range c.stands {
		if p.Holder.Node == node {
			delete(c.stands, r)
		}
	}
	return c.next()
}

// forget drops a node's pins.
func (c *Committer) forget(node replica.NodeName) {
	if p := c.pins[node]; p != nil && c.live {
		c.tally.drop(node, p.parts)
	}
	delete(c.pins, node)
}

// Outcome resolves a proposal: applied (err nil) or refused. Any other error means unknown: it is read back, and proposed
// again with the next event if the job doesn't show it by then.
func (c *Committer) Outcome(cmd replica.Command, err error) []Effect {
	i := slices.IndexFunc(c.pending, func(p *proposal) bool { return sameProposal(p.command, cmd) })
	if i < 0 {
		return nil
	}
	var refused *Refused
	if err != nil && !errors.As(err, &refused) {
		c.pending[i].lost = true
		return nil
	}
	c.refused = c.refused || err != nil && c.pending[i].on == c.job // else the job's change is the news
	c.pending = slices.Delete(c.pending, i, i+1)
	return c.next()
}

func sameProposal(a, b replica.Command) bool {
	switch a := a.(type) {
	case replica.Commit:
		b, ok := b.(replica.Commit)
		return ok && a.Position == b.Position
	case replica.SetCopies:
		_, ok := b.(replica.SetCopies)
		return ok
	case replica.ReportDispute:
		b, ok := b.(replica.ReportDispute)
		return ok && a.Dispute.Group == b.Dispute.Group && a.Dispute.Generation == b.Dispute.Generation
	}
	return false
}

func (c *Committer) propose(cmd replica.Command) []Effect {
	c.pending = append(c.pending, &proposal{command: cmd, on: c.job})
	return []Effect{Propose{cmd}}
}

// next does what the rules allow now.
func (c *Committer) next() []Effect {
	c.told = nil
	if c.job == nil || c.job.Phase != replica.Open {
		return nil
	}
	var out []Effect
	for _, p := range c.pending {
		if p.lost {
			p.lost = false
			out = append(out, Propose{p.command})
		}
	}
	if len(c.pending) > 0 || c.refused {
		return out
	}
	if c.possible != c.job.Copies {
		return append(out, c.propose(replica.SetCopies{Job: c.job.ID, Copies: c.possible})...)
	}
	if c.live {
		if cmd := c.justified(); cmd != nil {
			return append(out, c.propose(cmd)...)
		}
	}
	if !c.heard.waits(c.job) && (!c.live || c.lapsed || c.standing() > 0) {
		out = append(out, c.name()...)
	}
	return out
}

// justified is what the pins of the candidate justify: the dispute once a group's vote is decided, the commit once every group and every
// private part is whole, else nil.
func (c *Committer) justified() replica.Command {
	if g, ok := c.tally.dispute(); ok && !slices.Contains(c.disputed, c.candidate.Generation) { // reported once
		c.disputed = append(c.disputed, c.candidate.Generation)
		votes, _ := c.tally.votes(g, c.tally.parts[g].answers)
		return replica.ReportDispute{Job: c.job.ID, Epoch: c.job.Epoch, Dispute: replica.Dispute{
			Group: g, Generation: c.candidate.Generation, Votes: votes, Suspects: Suspects(votes),
		}}
	}
	if c.lapsed {
		return nil
	}
	return c.tally.commit(c.candidate)
}

// standing is the newest step that all ranks hold, if all stand at one step on purpose, below the candidate; 0 where there is none that
// is not committed yet. A candidate that no rank will come to is given up for it.
func (c *Committer) standing() replica.Step {
	at, common := c.stands[0].Live, c.stands[0].Holds
	if len(c.stands) < len(c.job.Ranks) || at.Step >= c.candidate.Position.Step { // it has fallen back to them already, and they have yet to pin it
		return 0
	}
	for r := range c.job.Ranks {
		p, ok := c.stands[replica.Rank(r)]
		if !ok || p.Live != at {
			return 0
		}
		common = slices.DeleteFunc(slices.Clone(common), func(g replica.Generation) bool { return !slices.Contains(p.Holds, g) })
	}
	var newest replica.Step
	for _, g := range common {
		if g.Epoch == c.job.Epoch && g.Step > c.job.Position.Step && g.Step < c.candidate.Position.Step {
			newest = max(newest, g.Step)
		}
	}
	return newest
}

// name announces the next candidate: the one of an earlier leader that can still be had, or what all ranks have sealed since; else a multiple of durable_every that would be passed otherwise (forWrite); else the first step due after the position that ranks will not have passed when they hear of it; or, where
// all ranks stand on purpose, the newest that they hold; or, after some rank passed the last one, a later generation that all who passed
// hold, else one further ahead with each failure until a commit (protocol section 5.1).
func (c *Committer) name() []Effect {
	var goesOn replica.Generation
	if h := c.heard; h != nil {
		c.lead.sees(h.live(c.job.Epoch))
		if goesOn = h.candidate(c.job); goesOn.IsZero() && c.job.Options.Slots <= 3 { // with four they pass while the news travels
			goesOn = h.common(c.job)
		}
		c.heard = nil
	}
	step := NextDue(c.job, max(c.job.Position.Step, c.lead.first()-1))
	c.skipped = 0
	if s := c.standing(); c.live && s > 0 {
		step = s
	} else if !goesOn.IsZero() {
		step = goesOn.Step
	} else if c.live && c.lapsed {
		c.failures++
		step = c.later()
	} else {
		due := step
		step = forWrite(c.job, due, max(c.stride, c.lead.steps))
		c.skipped = step - due
	}
	if step > replica.MaxStep {
		return nil
	}
	at := replica.Position{Epoch: c.job.Epoch, Step: step}
	c.candidate = replica.Candidate{Job: c.job.ID, Term: c.term, N: c.candidate.N + 1, Position: at, Generation: replica.Generation(at)}
	c.live, c.lapsed = true, false
	c.lead.named(c.candidate.N)
	c.pins = map[replica.NodeName]*pins{}
	c.tally.looked = 0
	c.tally.begin(c.job)
	return []Effect{Announce{c.candidate}}
}

// maxBackOff caps what failures add to a candidate, in steps: what keeps ranks from capturing may be over at any time.
const maxBackOff = 32

// writeBackOff caps it while a durable write is under way: that gives up a slot which a commit lacks after ten steps, and a candidate that was named far
// ahead meanwhile would add as many to the wait.
const writeBackOff = 4

// later picks a candidate above the one that lapsed. What ranks hold in common is tried while they have not failed twice, and only where
// news travels in less time than a slot for freshness is kept: reports age, and a generation that others had skipped would only be passed again.
func (c *Committer) later() replica.Step {
	var common []replica.Step
	var live replica.Step
	first := true
	for _, p := range c.passed {
		live = max(live, p.Live.Step)
		var holds []replica.Step
		for _, g := range p.Holds {
			if g.Epoch == c.job.Epoch && g.Step > c.candidate.Position.Step && (first || slices.Contains(common, g.Step)) {
				holds = append(holds, g.Step)
			}
		}
		common, first = holds, false
	}
	if len(common) > 0 && c.failures <= 2 && c.lead.steps < freshFor(c.job) {
		return slices.Max(common)
	}
	most := replica.Step(maxBackOff)
	if c.job.Writer != nil {
		most = writeBackOff
	}
	k := min(replica.Step(2)<<min(max(c.failures-1, 0), 20), most)
	at := NextDue(c.job, max(live+k, c.lead.first(), c.candidate.Position.Step+1)-1)
	// A step that is captured for freshness anyway: with a capture in the step before it, that one would have its slot, each time anew.
	if o := c.job.Options; o.Slots > 2 && !ShouldCapture(at, 0, replica.MaxStep, o.Cadence, o.Slots) {
		at = NextDue(c.job, at)
	}
	return at
}
