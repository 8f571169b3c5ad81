package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/franchise"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// A raft is the logs of all voters: what is committed, how far each has come in it, and whom each takes for the leader. A leader is elected by
// a majority that hears it, and commits while one does. One that is cut off leads on for as long as its lease, beside the next one; a voter
// that hears no leader believes in the last one for a while; one may lag seconds behind. What was proposed by a leader that fell meanwhile may
// be committed or not, also by the next leader, and its proposer is told that nobody knows.
type raft struct {
	w *world
	*dice

	mu     sync.Mutex // guards the rest
	log    []replica.Command
	whole  *copied // of all that is committed
	late   []entry // in logs of voters, and not committed yet; their proposers know nothing
	voters []replica.NodeName
	copies map[replica.NodeName]*copied // on disk: they outlive daemons
	runs   map[replica.NodeName]*voter
	leader replica.NodeName // the newest that was elected; empty: it fell
	led    *voter           // the last one that was elected
	term   uint64
	stands time.Time                 // when the next one stands; zero: nobody is missed
	mute   bool                      // nobody is elected any more
	lost   map[replica.NodeName]bool // voters whose log is lost: no vote until a leader has taken them in
}

// copied is the state as far as a log was applied.
type copied struct {
	state *lock.State
	view  lock.View
}

// entry is a proposal on its way.
type entry struct {
	command replica.Command
	term    uint64
}

const (
	entryTakes = 3 * time.Millisecond
	unlucky    = 0.01 // of the proposals are lost, as many answers, and as many entries are committed when their proposer knows nothing any more
	tick       = 20 * time.Millisecond
	lease      = 400 * time.Millisecond
	overdue    = 300 * time.Millisecond // that a leader may notice the end of its lease too late, as one whose cores are taken does
	lags       = 0.002                  // of the ticks a voter begins to lag
	laggard    = 3 * time.Second        // at most
)

func newRaft(w *world, voters []replica.NodeName) *raft {
	r := &raft{w: w, dice: w.dice("log", 0), whole: newCopied(w.cluster), voters: voters, copies: map[replica.NodeName]*copied{}, runs: map[replica.NodeName]*voter{}, lost: map[replica.NodeName]bool{}}
	for _, v := range voters {
		r.copies[v] = newCopied(w.cluster)
	}
	return r
}

func newCopied(cluster replica.ClusterID) *copied {
	s := lock.New(cluster)
	return &copied{s, s.View()}
}

// apply takes in what the log has beyond what was applied.
func (c *copied) apply(log []replica.Command) (news bool) {
	for c.view.Index < uint64(len(log)) {
		c.state.Apply(c.view.Index+1, log[c.view.Index])
		c.view, news = c.state.View(), true
	}
	return news
}

// join takes a voter's daemon in.
func (r *raft) join(name replica.NodeName) *voter {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &voter{r: r, name: name, heard: make(chan struct{}, 1)}
	r.runs[name] = v
	return v
}

// leave is the end of a voter's daemon.
func (r *raft) leave(name replica.NodeName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, name)
	if r.leader == name {
		r.leader = ""
	}
}

// majority tells whether more than half of the voters run and hear one, and it them.
func (r *raft) majority(of replica.NodeName) bool {
	n := 0
	for name := range r.runs {
		if (name == of || !r.w.net.cut(of, name)) && !r.lost[name] {
			n++
		}
	}
	return r.runs[of] != nil && !r.lost[of] && 2*n > len(r.voters)
}

// empty loses the log of a voter whose daemon does not run.
func (r *raft) empty(name replica.NodeName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.copies[name], r.lost[name] = newCopied(r.w.cluster), true
}

// forgot tells whether a voter has lost its log, and was not taken in.
func (r *raft) forgot(name replica.NodeName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost[name]
}

// asks has a voter whose log is lost ask the others, as one whose unit has --bootstrap; the rules are the daemon's. r.mu is held.
func (r *raft) asks(name replica.NodeName) {
	heard := map[replica.NodeName]franchise.Answer{}
	for other := range r.runs {
		if other != name && !r.w.net.cut(name, other) && !r.w.net.cut(other, name) {
			a := franchise.Answer{Members: r.voters, Forgot: r.lost[other]}
			if !r.lost[other] {
				a.Log = franchise.Mark{Term: r.term + 1, LastTerm: r.term + 1, Index: r.copies[other].view.Index + 1}
			}
			heard[other] = a
		}
	}
	if d := franchise.Judge(franchise.Own{Name: name, Members: r.voters, Bootstrap: true}, heard); d.Do == franchise.Begin {
		r.w.failf("voter %s, whose log is lost, begins a history of its own", name)
	}
}

// elect runs until ctx ends.
func (r *raft) elect(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tick):
		}
		r.mu.Lock()
		now := time.Now()
		for _, name := range r.voters {
			if v := r.runs[name]; v != nil {
				v.look(now)
			}
		}
		r.miss(now)
		r.mu.Unlock()
	}
}

// miss has a voter stand once no majority hears a leader, after a while.
func (r *raft) miss(now time.Time) {
	if r.leader != "" && r.majority(r.leader) {
		r.stands = time.Time{}
		return
	}
	if r.stands.IsZero() {
		r.stands = now.Add(lease + r.below(1100*time.Millisecond))
	}
	if r.mute || now.Before(r.stands) {
		return
	}
	may := slices.DeleteFunc(slices.Clone(r.voters), func(v replica.NodeName) bool { return !r.majority(v) })
	if len(may) == 0 {
		return
	}
	r.elects(may, now)
}

// elects has one of these voters lead. r.mu is held.
func (r *raft) elects(may []replica.NodeName, now time.Time) {
	r.stands = time.Time{}
	r.leader = may[int(r.below(time.Duration(len(may))))]
	again := r.led != nil && r.runs[r.leader] == r.led && r.led.term == r.term && r.chance() < 0.5 // it could not write its log for a while, and nobody took its place
	if !again {
		r.term++
	}
	r.w.tracef("voter %s leads in term %d", r.leader, r.term)
	late := r.late
	r.late = nil
	for _, e := range late { // those that a majority had are committed before anything of this term
		if again || r.chance() < 0.5 {
			r.commit(e.command)
		}
	}
	v := r.runs[r.leader]
	r.led = v
	r.copies[v.name].apply(r.log)
	v.believes, v.term, v.leads, v.contact = v.name, r.term, true, now
	v.poke()
}

// commit is the commit of an entry. r.mu is held.
func (r *raft) commit(c replica.Command) (uint64, lock.Outcome) {
	r.log = append(r.log, c)
	was := r.whole.view
	out := r.whole.state.Apply(uint64(len(r.log)), c)
	r.whole.view = r.whole.state.View()
	r.w.applied(was, r.whole.view, c, out)
	return uint64(len(r.log)), out
}

// depose has the leader fall.
func (r *raft) depose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.runs[r.leader]; v != nil {
		v.falls()
	}
	r.leader = ""
}

// silence has the leader fall, and nobody be elected after it.
func (r *raft) silence() {
	r.depose()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mute = true
}

// speak ends the silence: the next one may be elected.
func (r *raft) speak() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mute = false
}

// handOver has another voter lead at once, if one may.
func (r *raft) handOver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	may := slices.DeleteFunc(slices.Clone(r.voters), func(v replica.NodeName) bool { return v == r.leader || !r.majority(v) })
	if len(may) == 0 || r.mute {
		return
	}
	if v := r.runs[r.leader]; v != nil {
		v.falls()
	}
	r.elects(may, time.Now())
}

func (r *raft) now() lock.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.whole.view
}

func (r *raft) leads() (replica.NodeName, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader, r.term
}

// heardOf is whom a voter that a node hears takes for the leader: maybe one that leads no more.
func (r *raft) heardOf(from replica.NodeName) replica.NodeName {
	r.mu.Lock()
	defer r.mu.Unlock()
	var said []replica.NodeName
	for _, name := range r.voters {
		if v := r.runs[name]; v != nil && v.believes != "" && (name == from || !r.w.net.cut(from, name)) {
			said = append(said, v.believes)
		}
	}
	if len(said) == 0 {
		return ""
	}
	return said[int(r.below(time.Duration(len(said))))]
}

// voter is the log as one daemon sees it: it implements leader.Log. r.mu guards the rest.
type voter struct {
	r     *raft
	name  replica.NodeName
	heard chan struct{}

	believes replica.NodeName // the leader; empty: nobody
	term     uint64
	leads    bool
	contact  time.Time // with a majority, of one that leads; else with the leader
	lagsTill time.Time
	late     time.Duration // that it notices the end of its lease too late
}

func (v *voter) poke() {
	select {
	case v.heard <- struct{}{}:
	default:
	}
}

// falls ends its leadership.
func (v *voter) falls() {
	v.leads, v.believes = false, ""
	v.poke()
}

// look is what a voter hears at a moment. r.mu is held.
func (v *voter) look(now time.Time) {
	r := v.r
	if r.lost[v.name] {
		r.asks(v.name)
	}
	if v.leads {
		switch {
		case r.leader == v.name && r.majority(v.name):
			v.contact, v.late = now, r.below(overdue)
		case now.Sub(v.contact) > lease+v.late:
			r.w.tracef("voter %s leads no more in term %d", v.name, v.term)
			if r.leader == v.name {
				r.leader = ""
			}
			v.falls()
		}
		return
	}
	leader := r.runs[r.leader]
	if leader == nil || !leader.leads || v.name == r.leader || r.w.net.cut(v.name, r.leader) {
		if v.believes != "" && now.Sub(v.contact) > lease {
			v.believes = ""
			v.poke()
		}
		return
	}
	if r.lost[v.name] && r.majority(r.leader) {
		delete(r.lost, v.name)
		r.w.tracef("voter %s is taken in again", v.name)
	}
	news := v.believes != r.leader || v.term != r.term
	v.believes, v.term, v.contact = r.leader, r.term, now
	if r.chance() < lags {
		v.lagsTill = now.Add(r.below(laggard))
	}
	if now.After(v.lagsTill) && r.copies[v.name].apply(r.log) || news {
		v.poke()
	}
}

func (v *voter) ID() replica.NodeName { return v.name }

func (v *voter) Leadership() (replica.NodeName, string, uint64, bool) {
	v.r.mu.Lock()
	defer v.r.mu.Unlock()
	return v.believes, string(v.believes), v.term, v.leads && v.r.runs[v.name] == v
}

func (v *voter) State() lock.View {
	v.r.mu.Lock()
	defer v.r.mu.Unlock()
	return v.r.copies[v.name].view
}

func (v *voter) Changes() <-chan struct{} { return v.heard }

func (v *voter) Propose(ctx context.Context, c replica.Command) (uint64, lock.Outcome, error) {
	_, _, term, leads := v.Leadership()
	if !leads {
		return 0, lock.Outcome{}, &consensus.NotLeader{}
	}
	r := v.r
	for {
		select {
		case <-ctx.Done():
			return 0, lock.Outcome{}, fmt.Errorf("%w: %w", consensus.ErrUnknown, context.Cause(ctx))
		case <-time.After(entryTakes):
		}
		r.mu.Lock()
		if v.term != term || !v.leads || r.runs[v.name] != v { // it fell, with the entry in its own log
			if r.term == term {
				r.late = append(r.late, entry{c, term})
			}
			r.mu.Unlock()
			return 0, lock.Outcome{}, consensus.ErrUnknown
		}
		if r.leader == v.name && r.majority(v.name) {
			break
		}
		r.mu.Unlock()
	}
	defer r.mu.Unlock()
	luck := r.chance()
	if luck < unlucky {
		r.w.tracef("%T is lost", c)
		return 0, lock.Outcome{}, consensus.ErrUnknown // it was never written
	}
	if luck < 2*unlucky {
		r.w.tracef("%T is late", c)
		r.late = append(r.late, entry{c, term})
		return 0, lock.Outcome{}, consensus.ErrUnknown // it is committed with the next one, or by the next leader, or never
	}
	for _, e := range r.late { // they come first in the log
		r.commit(e.command)
	}
	r.late = nil
	index, out := r.commit(c)
	r.copies[v.name].apply(r.log)
	v.poke()
	if luck > 1-unlucky {
		r.w.tracef("the outcome of %T is lost", c)
		return 0, lock.Outcome{}, consensus.ErrUnknown
	}
	return index, out, nil
}

func (v *voter) Voters() []consensus.Voter {
	var list []consensus.Voter
	for _, n := range v.r.voters {
		list = append(list, consensus.Voter{Name: n, Addr: string(n)})
	}
	return list
}
func (v *voter) Joining() []consensus.Voter                          { return nil }
func (v *voter) AddVoter(context.Context, consensus.Voter) error     { return nil }
func (v *voter) RemoveVoter(context.Context, replica.NodeName) error { return nil }
func (v *voter) MajorityWithout(replica.NodeName) error              { return nil }
func (v *voter) TransferTo(replica.NodeName) error                   { return nil }
