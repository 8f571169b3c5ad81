package leader

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/replica"
)

const (
	leaveSaid  = time.Second     // a daemon that waits hears so often that it does
	leaveMore  = 2 * time.Second // for further daemons to be asked to end, before one goes because others stay
	leaveTries = 3               // writes that fail before daemons stop to wait for one
	leaveLinks = 5 * time.Second // for the nodes to link to a new leader, which does not know yet who is there
	leaveLast  = 5 * time.Second // for the daemons that were told to end to do so before the leader's does
)

// leaving is a node whose daemon was asked to end.
type leaving struct {
	at     time.Duration                        // when this leader heard of it
	owed   map[replica.JobID]replica.Generation // by job, what is to be on disk before it ends: fixed when that was first found
	told   string                               // why it waits, as it was told last
	toldAt time.Duration
	goes   bool                   // it was told that it may end, or did not ask
	lacks  map[replica.JobID]bool // jobs whose people were told that it ends without what is owed
	// readyAt is when nothing was owed any more, of the daemon that leads; zero: something is.
	readyAt time.Duration
}

// leaves takes the word of a daemon that it was asked to end, or goes.
func (l *Leader) leaves(ctx context.Context, from *nodeLink, m control.Leaving) {
	l.leaving[from.node.Name] = &leaving{at: l.now(), goes: m.Goes, owed: map[replica.JobID]replica.Generation{}, lacks: map[replica.JobID]bool{}}
	l.tellLeaving(ctx)
}

// tellLeaving tells the daemons that were asked to end whether they may.
func (l *Leader) tellLeaving(ctx context.Context) {
	for name, v := range l.leaving {
		n := l.links.of[name]
		if n == nil {
			delete(l.leaving, name)
			continue
		}
		if v.goes {
			continue
		}
		why := l.stays(ctx, name, v)
		if v.goes = why == ""; v.goes || why != v.told || l.now()-v.toldAt >= leaveSaid {
			v.told, v.toldAt = why, l.now()
			n.Send(control.MayLeave{Why: why, Keep: v.goes && keeps(v, l.jobs)})
		}
	}
}

// keeps tells whether a daemon that ends is to leave in its spool what is committed: what is owed is not written, or more was committed since, and the
// daemons that have it end as well.
func keeps(v *leaving, jobs map[replica.JobID]*ledJob) bool {
	if len(v.lacks) > 0 {
		return true
	}
	for id := range v.owed {
		if led := jobs[id]; led != nil && led.job.Undurable() {
			return true
		}
	}
	return false
}

// stays says why the daemon of a node is to wait before it ends; empty: it may.
func (l *Leader) stays(ctx context.Context, node replica.NodeName, v *leaving) string {
	c := durable.Cluster{
		Voters: voterNames(l.cons.Voters()),
		Mute:   l.voters.Mute,
		Linked: func(n replica.NodeName) bool { return l.links.of[n] != nil },
		// The probes of a leader that is new may not have begun.
		Answers: func(n replica.NodeName) bool { return l.now()-l.since < leaveLinks || l.cfg.Answers(n) },
		Leaves:  func(n replica.NodeName) bool { o := l.leaving[n]; return o != nil && o.goes },
		Asked:   func(n replica.NodeName) bool { return l.leaving[n] != nil },
		Life:    func(n replica.NodeName) replica.NodeIncarnation { return l.view.Nodes[n].Incarnation },
	}
	for id, led := range l.jobs {
		job := led.job
		owed, found := v.owed[id]
		if found && (job.Phase == replica.Ended || owed.Compare(job.Durable) <= 0) || !found && !job.Undurable() {
			continue
		}
		if found && led.durable.Failures() >= leaveTries {
			l.goesWithout(led, node, v, owed, fmt.Sprintf("after %d tries (%s)", leaveTries, cmp.Or(led.durable.Why(), "the log of the leader's node says why")))
			continue
		}
		if !found && !c.Needed(job, node) && !durable.Last(job, node, led.recovery.Unattended() || led.recovery.Finishing()) {
			lacks := c.Lacks(job)
			if lacks != "" && c.Awaits(job) {
				return fmt.Sprintf("daemons that write step %d of job %s are to link to the leader: %s", job.Committed.Step, job.Name, lacks)
			} else if lacks != "" && c.Holds(job, node) {
				l.goesWithout(led, node, v, job.Committed, fmt.Sprintf("and nobody writes it (%s)", lacks))
			} else if lacks == "" && job.Undurable() && l.now()-v.at < leaveMore { // words of others may be on their way: they count on each other then
				return fmt.Sprintf("whether the other nodes, which have step %d of job %s too, are asked to end as well shows within %v", job.Committed.Step, job.Name, leaveMore)
			}
			continue
		}
		if !found {
			v.owed[id] = job.Committed
			l.tell(id, fmt.Sprintf("the daemon of node %s was asked to end: step %d is written to the durable tier first", node, job.Committed.Step))
			l.durableLearns(ctx, led, durable.Ask{})
		}
		return fmt.Sprintf("step %d of job %s is written to the durable tier first", v.owed[id].Step, job.Name)
	}
	if node != l.cons.ID() || len(v.owed) == 0 {
		return ""
	}
	if v.readyAt == 0 {
		v.readyAt = l.now()
	}
	if l.now()-v.readyAt >= leaveLast {
		return ""
	}
	return l.leadsOthers(node)
}

// goesWithout has people know, once, that a daemon ends though what it was to wait for is not on disk, and why.
func (l *Leader) goesWithout(led *ledJob, node replica.NodeName, v *leaving, owed replica.Generation, why string) {
	if v.lacks[led.job.ID] {
		return
	}
	v.lacks[led.job.ID] = true
	text := fmt.Sprintf("step %d is NOT on disk %s; the daemon of node %s, which was asked to end, ends without it; memory has that step for as long as the keepers run: start the daemons again. Each daemon leaves what it has of it in its spool as it ends, where replicad run --resume looks too", owed.Step, why, node)
	l.log.Failed("durable", "the last write of job "+led.job.Name, text)
	l.tell(led.job.ID, "warning: "+text)
}

// leadsOthers says which daemon the leader's waits for: one that was asked to end as well needs a leader to hear that it may.
func (l *Leader) leadsOthers(node replica.NodeName) string {
	for other := range l.leaving {
		if other != node && l.links.of[other] != nil {
			return fmt.Sprintf("this daemon leads, and that of node %s ends first", other)
		}
	}
	return ""
}

func voterNames(voters []consensus.Voter) (names []replica.NodeName) {
	for _, v := range voters {
		names = append(names, v.Name)
	}
	return names
}
