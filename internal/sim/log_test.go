package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// A raft is the replicated log of all voters. It elects a voter whose daemon runs, and applies what the leader proposes while a majority
// runs. What was proposed by a leader that fell meanwhile may be applied or not, and its proposer is told that nobody knows.
type raft struct {
	w *world
	*dice

	mu     sync.Mutex // guards the rest
	state  *lock.State
	view   lock.View
	voters []replica.NodeName
	leader replica.NodeName // empty: nobody
	term   uint64
	heard  map[replica.NodeName]chan struct{} // of the daemons that run
}

func newRaft(w *world, voters []replica.NodeName) *raft {
	s := lock.New(w.cluster)
	return &raft{w: w, dice: w.dice("log", 0), state: s, view: s.View(), voters: voters, heard: map[replica.NodeName]chan struct{}{}}
}

// join takes a voter's daemon in.
func (r *raft) join(name replica.NodeName) *voter {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard[name] = make(chan struct{}, 1)
	return &voter{r, name, r.heard[name]}
}

// leave is the end of a voter's daemon.
func (r *raft) leave(name replica.NodeName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.heard, name)
	if r.leader == name {
		r.leader = ""
	}
}

func (r *raft) majority() bool { return 2*len(r.heard) > len(r.voters) }

// elect runs until ctx ends.
func (r *raft) elect(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(500*time.Millisecond + r.below(time.Second)):
		}
		r.mu.Lock()
		if r.leader == "" && r.majority() {
			var may []replica.NodeName
			for _, v := range r.voters {
				if r.heard[v] != nil {
					may = append(may, v)
				}
			}
			r.leader, r.term = may[int(r.below(time.Duration(len(may))))], r.term+1
			r.w.tracef("voter %s leads in term %d", r.leader, r.term)
			r.tell()
		}
		r.mu.Unlock()
	}
}

// depose has the leader fall.
func (r *raft) depose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader = ""
	r.tell()
}

// tell has each voter look. r.mu is held.
func (r *raft) tell() {
	for _, ch := range r.heard {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (r *raft) now() lock.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view
}

func (r *raft) leads() (replica.NodeName, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader, r.term
}

// voter is the log as one daemon sees it: it implements leader.Log.
type voter struct {
	r     *raft
	name  replica.NodeName
	heard chan struct{}
}

func (v *voter) ID() replica.NodeName { return v.name }

func (v *voter) Leadership() (replica.NodeName, string, uint64, bool) {
	v.r.mu.Lock()
	defer v.r.mu.Unlock()
	return v.r.leader, string(v.r.leader), v.r.term, v.r.leader == v.name && v.r.heard[v.name] == v.heard
}

func (v *voter) State() lock.View         { return v.r.now() }
func (v *voter) Changes() <-chan struct{} { return v.heard }

const (
	entryTakes  = 3 * time.Millisecond
	lostEntries = 0.01 // of the proposals, and as many whose answer is lost
)

func (v *voter) Propose(ctx context.Context, c replica.Command) (uint64, lock.Outcome, error) {
	_, _, term, leads := v.Leadership()
	if !leads {
		return 0, lock.Outcome{}, &consensus.NotLeader{}
	}
	for {
		select {
		case <-ctx.Done():
			return 0, lock.Outcome{}, fmt.Errorf("%w: %w", consensus.ErrUnknown, context.Cause(ctx))
		case <-time.After(entryTakes):
		}
		v.r.mu.Lock()
		if v.r.term != term || v.r.leader != v.name && v.r.leader != "" {
			v.r.mu.Unlock()
			return 0, lock.Outcome{}, consensus.ErrUnknown
		}
		if v.r.majority() {
			break
		}
		v.r.mu.Unlock()
	}
	defer v.r.mu.Unlock()
	luck := v.r.dice.chance()
	if luck < lostEntries {
		v.r.w.tracef("%T is lost", c)
		return 0, lock.Outcome{}, consensus.ErrUnknown // it was never written
	}
	index := v.r.view.Index + 1
	out := v.r.state.Apply(index, c)
	was := v.r.view
	v.r.view = v.r.state.View()
	v.r.w.applied(was, v.r.view, c, out)
	v.r.tell()
	if luck > 1-lostEntries || v.r.leader != v.name || v.r.heard[v.name] != v.heard {
		v.r.w.tracef("the outcome of %T is lost", c)
		return 0, lock.Outcome{}, consensus.ErrUnknown // it fell with the entry on its way
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
