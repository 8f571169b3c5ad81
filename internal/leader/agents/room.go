package agents

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

const (
	// closing is how long the end of an agent waits until the others hear of it: where the job has finished they hear of that instead.
	closing = 5 * time.Second
	// saidFirst is how long an agent waits until it is told for whom; it is told again each time that has doubled.
	saidFirst = 10 * time.Second
	// most bounds the agents of a job.
	most = wire.MaxAgentNodes + 64
	// maxNames bounds what a text says of nodes, in bytes.
	maxNames = 200
)

// Event is something that a Room learns.
type Event interface{ event() }

type (
	// Reported is all agents of a node, on its newest link.
	Reported struct {
		Node   replica.NodeName
		Agents []wire.Agent
	}
	// Linked says that a node's link is new, or gone: what was reported on it may be no more.
	Linked struct{ Node replica.NodeName }
	// Lost says that a node is dead.
	Lost struct{ Node replica.NodeName }
	// Held says which nodes hold ranks of the job, or may, since they have not said anything to this leader yet. All: there is
	// no rank that a process is wanted for.
	Held struct {
		Nodes []replica.NodeName
		All   bool
	}
)

func (Reported) event() {}
func (Linked) event()   {}
func (Lost) event()     {}
func (Held) event()     {}

// Tell is what a Step has its owner send to an agent of a node.
type Tell struct {
	Node  replica.NodeName
	Round wire.Round
}

// agent is one that is there, or may be.
type agent struct {
	wire.Agent
	node   replica.NodeName
	came   uint64        // its place in the order of arrival
	until  time.Duration // it is gone then, if its node has not reported it anew; 0: its node has
	told   *wire.Round   // newest; nil: nothing on this link
	since  time.Duration // it waits
	sayAt  time.Duration // it is told next for whom
	spared bool          // it was told that it is a spare
}

// Room is where the agents of one job meet.
type Room struct {
	first uint64        // number of this leader's first round
	grace time.Duration // for agents of daemons that are away
	since time.Duration // it is there
	held  Held          // newest

	agents  map[string]*agent
	arrived uint64
	number  uint64        // of the round; 0: there was none
	slots   []string      // of the round, by rank: agents; empty: one that a leader before this one knew
	head    string        // address of the round's rank 0
	heard   time.Duration // of a round of such a leader
	sayLost bool          // an agent of the round is gone, and nobody waits
	lostAt  time.Duration // since when
	closed  string        // why there is no further round; empty: there may be
	closeAt time.Duration // the others hear of it
}

// New returns a room of a leader of a term. Rounds of different terms have different numbers. last is the highest one that the same leader has given
// before: it may lead again in the same term.
func New(term, last uint64, now, grace time.Duration) *Room {
	return &Room{first: max(term<<32, last) + 1, grace: grace, since: now, agents: map[string]*agent{}}
}

// Last is the highest number that the leader may have given to a round.
func (r *Room) Last() uint64 { return max(r.number, r.first-1) }

// Any tells whether there is an agent.
func (r *Room) Any() bool { return len(r.agents) > 0 }

// Asks tells whether it matters now who holds ranks.
func (r *Room) Asks() bool { return r.number == 0 || r.closed != "" }

// Learn takes an event in.
func (r *Room) Learn(now time.Duration, ev Event) {
	switch ev := ev.(type) {
	case Reported:
		r.reported(now, ev)
	case Linked:
		for _, a := range r.on(ev.Node) {
			a.until, a.told = now+r.grace, nil
		}
	case Lost:
		for _, a := range r.on(ev.Node) {
			delete(r.agents, a.ID)
		}
	case Held:
		r.held = ev
	}
}

// on are a node's agents.
func (r *Room) on(n replica.NodeName) (list []*agent) {
	for _, a := range r.agents {
		if a.node == n {
			list = append(list, a)
		}
	}
	return list
}

func (r *Room) reported(now time.Duration, ev Reported) {
	there := map[string]bool{}
	for _, is := range ev.Agents {
		if is.Check() != nil {
			continue
		}
		there[is.ID] = true
		r.says(now, ev.Node, is)
	}
	for _, a := range r.on(ev.Node) {
		if !there[a.ID] && a.until == 0 { // the daemon had it, and has it no more
			delete(r.agents, a.ID)
		}
	}
}

// says takes in what an agent stands in now.
func (r *Room) says(now time.Duration, n replica.NodeName, is wire.Agent) {
	a := r.agents[is.ID]
	if a == nil {
		if len(r.agents) >= most {
			return
		}
		r.arrived++
		a = &agent{came: r.arrived, since: now, sayAt: now + saidFirst}
		r.agents[is.ID] = a
	}
	if a.Address != is.Address { // it waits anew
		a.since, a.sayAt, a.spared = now, now+saidFirst, false
	}
	if a.node != n {
		a.told = nil
	}
	a.Agent, a.node, a.until = is, n, 0
	if is.Closed && r.closed == "" {
		r.closed = fmt.Sprintf("torchrun on node %s has ended, and with it the rendezvous: what it printed says why. When all have ended, start them again with the same line", n)
		r.closeAt = now + closing
	}
	if is.Round > r.number { // a round of a leader before this one
		r.number, r.slots, r.head, r.heard = is.Round, make([]string, is.Nodes), is.Head, now
	}
	if is.Round == r.number && is.Round != 0 && int(is.Rank) < len(r.slots) {
		r.slots[is.Rank] = is.ID
	}
}

// in tells whether an agent is in the round.
func (r *Room) in(a *agent) bool {
	return r.number != 0 && a.Left < r.number && !a.Closed && slices.Contains(r.slots, a.ID)
}

// over tells whether the round has lost one of its agents.
func (r *Room) over(now time.Duration) bool {
	for _, id := range r.slots {
		a := r.agents[id]
		if id == "" && now < r.heard+r.grace {
			continue // of a leader before this one: its daemon may not have linked yet
		}
		if a == nil || !r.in(a) {
			return true
		}
	}
	return r.number == 0
}

// waiting are the agents that want a round, those of the last one first, by rank, and then in the order in which they came.
func (r *Room) waiting() (list []*agent) {
	for _, a := range r.agents {
		if a.Round == 0 && !r.in(a) && !a.Closed && r.unlike(a) == "" {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b *agent) int {
		return cmp.Or(cmp.Compare(uint(slices.Index(r.slots, a.ID)), uint(slices.Index(r.slots, b.ID))), cmp.Compare(a.came, b.came)) // not there: -1, which is the largest
	})
	return list
}

// eldest is the agent that came first, whose idea of a round's size counts.
func (r *Room) eldest() (e *agent) {
	for _, a := range r.agents {
		if e == nil || a.came < e.came {
			e = a
		}
	}
	return e
}

// unlike says how an agent wants other rounds than the others; empty: it wants the same.
func (r *Room) unlike(a *agent) string {
	if e := r.eldest(); e.Nodes != a.Nodes {
		return fmt.Sprintf("this torchrun is for %d nodes, and the one on node %s for %d: give all of them the same --nnodes", a.Nodes, e.node, e.Nodes)
	}
	return ""
}

// Step returns what is to be told.
func (r *Room) Step(now time.Duration) (out []Tell) {
	for id, a := range r.agents {
		if a.until != 0 && now >= a.until {
			delete(r.agents, id)
		}
	}
	if len(r.agents) == 0 {
		r.closed = "" // who comes now begins anew
		return nil
	}
	over := r.over(now)
	if over && r.closed == "" {
		over = r.unheard(now) || !r.begin()
	}
	waits := 0
	if over {
		waits = len(r.waiting())
	}
	if over && r.ends(now) {
		waits = max(waits, 1) // that they come, and hear that there is no further round
	}
	if r.sayLost = over && waits == 0 && r.closed == ""; !r.sayLost {
		r.lostAt = now
	}
	for _, id := range slices.Sorted(maps.Keys(r.agents)) {
		a := r.agents[id]
		is := r.told(now, a, waits)
		if a.until != 0 || a.told != nil && *a.told == is {
			continue
		}
		if a.told = &is; is != (wire.Round{ID: id}) { // that it is to wait it knows
			out = append(out, Tell{a.node, is})
		}
	}
	return out
}

// unheard tells whether there may be a round that this leader has not heard of. One that it began beside that would end processes
// that are well.
func (r *Room) unheard(now time.Duration) bool {
	return r.number == 0 && len(r.held.Nodes) > 0 && now < r.since+r.grace
}

// ends tells whether a round that is over is to be left though it has no successor. While no process is wanted its agents go on to
// their own ends: processes may finish at different times.
func (r *Room) ends(now time.Duration) bool {
	return r.closed != "" && now >= r.closeAt && !r.held.All
}

// begin makes the next round, if there are enough agents and none is still in the last one.
func (r *Room) begin() bool {
	list := r.waiting()
	nodes := int(r.eldest().Nodes)
	for _, a := range r.agents {
		if r.in(a) {
			return false // it hears that others wait
		}
	}
	if len(list) < nodes {
		return false
	}
	slots := make([]string, nodes)
	var rest []*agent
	for _, a := range list[:nodes] {
		if k := slices.Index(r.slots, a.ID); k >= 0 && k < nodes {
			slots[k] = a.ID
		} else {
			rest = append(rest, a)
		}
	}
	for k := range slots {
		if slots[k] == "" {
			slots[k], rest = rest[0].ID, rest[1:]
		}
	}
	r.number = max(r.number+1, r.first)
	for _, a := range r.agents {
		r.number = max(r.number, a.Left+1)
	}
	r.slots, r.head = slots, r.agents[slots[0]].Address
	return true
}

// told is what an agent is to be told now.
func (r *Room) told(now time.Duration, a *agent, waits int) wire.Round {
	is := wire.Round{ID: a.ID}
	switch {
	case r.in(a):
		is.Number, is.Rank, is.Head, is.Waits = r.number, uint32(slices.Index(r.slots, a.ID)), r.head, uint32(waits)
		if r.sayLost && now >= r.lostAt+saidFirst {
			is.Text = fmt.Sprintf("of the torchruns of %d nodes those on %s are left: start it again with the same line, there or on another node", len(r.slots), r.names(r.in))
		}
	case a.Round != 0: // of a round that is not the newest: it is to come into that
		is.Number, is.Rank, is.Head, is.Waits = a.Round, a.Rank, a.Head, 1
	case r.closed != "" && now >= r.closeAt:
		is.Closed, is.Text = true, r.closed
	case r.unlike(a) != "":
		is.Closed, is.Text = true, r.unlike(a)
	default:
		is.Text = r.waitsFor(now, a)
	}
	return is
}

// waitsFor says, now and then, for whom an agent waits; else what it was told last.
func (r *Room) waitsFor(now time.Duration, a *agent) string {
	last := ""
	if a.told != nil && a.told.Number == 0 {
		last = a.told.Text
	}
	if r.number != 0 && !r.over(now) {
		if a.spared && last != "" {
			return last
		}
		a.spared = true
		return fmt.Sprintf("this torchrun is a spare: %d others train, on %s. It takes the place of one that is lost", len(r.slots), r.names(r.in))
	}
	if a.spared {
		a.spared, a.since, a.sayAt = false, now, now+saidFirst
		return ""
	}
	if now < a.sayAt {
		return last
	}
	for a.sayAt <= now {
		a.sayAt = a.since + 2*(a.sayAt-a.since)
	}
	if r.unheard(now) {
		return fmt.Sprintf("waiting for %v for the torchruns on %s: they may be in a round that the new leader has not heard of. If there are none any more, this takes at most %v", (now - a.since).Round(time.Second), listed(r.held.Nodes), r.grace)
	}
	here, nodes := r.waiting(), int(r.eldest().Nodes)
	missing := nodes - len(here)
	if missing <= 0 {
		return fmt.Sprintf("waiting for %v for the processes on %s, which are still in the last round", (now - a.since).Round(time.Second), r.names(r.in))
	}
	return fmt.Sprintf("waiting for %v for %d more of %d nodes: there are torchruns on %s. Start it with the same line on another node", (now - a.since).Round(time.Second), missing, nodes, r.names(func(a *agent) bool { return !r.in(a) }))
}

// names are the nodes of some agents.
func (r *Room) names(of func(*agent) bool) string {
	var list []replica.NodeName
	for _, a := range r.agents {
		if of(a) {
			list = append(list, a.node)
		}
	}
	return listed(list)
}

// listed is a text of some nodes.
func listed(nodes []replica.NodeName) string {
	list := make([]string, len(nodes))
	for i, n := range nodes {
		list[i] = string(n)
	}
	slices.Sort(list)
	return strings.ReplaceAll(replica.Listed(slices.Compact(list), maxNames), "; ", ", ")
}

// Next is when Step has something to do, whatever happens.
func (r *Room) Next(now time.Duration) (at time.Duration, ok bool) {
	sooner := func(t time.Duration) {
		if t > now && (!ok || t < at) {
			at, ok = t, true
		}
	}
	for _, a := range r.agents {
		if a.until != 0 {
			sooner(a.until)
		}
		if a.Round == 0 {
			sooner(a.sayAt)
		}
	}
	if r.sayLost {
		sooner(r.lostAt + saidFirst)
	}
	if r.closed != "" {
		sooner(r.closeAt)
	}
	if r.unheard(now) {
		sooner(r.since + r.grace)
	}
	if slices.Contains(r.slots, "") {
		sooner(r.heard + r.grace)
	}
	return at, ok
}
