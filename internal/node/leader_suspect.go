package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// suspicion collects the witnesses against a node.
type suspicion struct {
	logged  bool
	witness map[replica.NodeName]time.Duration
	base    map[replica.JobID]replica.Step
}

// witnessFresh is how long a witness's word counts; members repeat it each probe interval.
const witnessFresh = 1500 * time.Millisecond

// suspect counts a witness. A node is dead when two nodes (or all others, where there are fewer) find it silent on gossip
// and on the data path, and none of its jobs made a step since: protocol section 6, evidence.
func (l *leader) suspect(ctx context.Context, from replica.NodeName, m suspect) {
	n, ok := l.view.Nodes[m.Target.Node]
	if !ok || n.Incarnation != m.Target.Incarnation || l.links[m.Target.Node] != nil && from == m.Target.Node {
		return
	}
	s := l.suspicions[m.Target]
	if s == nil {
		s = &suspicion{witness: map[replica.NodeName]time.Duration{}, base: map[replica.JobID]replica.Step{}}
		l.suspicions[m.Target] = s
	}
	for job, live := range m.Live {
		base, seen := s.base[job]
		if led := l.jobs[job]; led != nil && led.job.Phase == replica.Open && holdsRank(led.job, m.Target) && seen && live > base+1 {
			clear(s.witness) // the job passes steps: its ranks there are alive, whatever is silent
			s.base[job] = live
		} else if !seen {
			s.base[job] = live
		}
	}
	s.witness[from] = l.now()
	count := 0
	for _, at := range s.witness {
		if l.now()-at <= witnessFresh {
			count++
		}
	}
	if count < min(2, max(1, l.couldWitness(m.Target.Node))) {
		return
	}
	if !s.logged {
		s.logged = true
		l.log.nodeState(m.Target.Node, "silent")
	}
	for id, led := range l.jobs {
		if led.job.Phase != replica.Ended {
			l.recoverStep(ctx, id, led, recovery.Evidence{Fault: replica.Fault{Epoch: led.job.Epoch, Kind: replica.NodeDead, Node: m.Target.Node, NodeIncarnation: m.Target.Incarnation,
				Detail: fmt.Sprintf("silent on gossip and on the data path for %d nodes", count)}})
		}
	}
}

func holdsRank(job *replica.Job, h replica.Holder) bool {
	return slices.ContainsFunc(job.Ranks, func(c replica.Claimed) bool {
		return c.Incarnation != 0 && c.Node == h.Node && c.NodeIncarnation == h.Incarnation
	})
}

// couldWitness counts the registered nodes besides one that no job holds for dead or silent, and that nobody has just found
// silent: of nodes that fall together none can speak against another. Links don't count: a leader that was just elected has
// hardly any, and one node's word must not be enough then.
func (l *leader) couldWitness(except replica.NodeName) int {
	n := 0
	for name, node := range l.view.Nodes {
		faulted := false
		for _, led := range l.jobs {
			faulted = faulted || slices.ContainsFunc(led.job.Faults, func(f replica.Fault) bool {
				return f.OfNode() && f.Kind.IsCondition() && f.Node == name && f.NodeIncarnation == node.Incarnation
			})
		}
		if name != except && !faulted && !l.suspected(holderOf(node)) {
			n++
		}
	}
	return n
}

// suspected tells whether somebody's word against a node still counts.
func (l *leader) suspected(h replica.Holder) bool {
	s := l.suspicions[h]
	if s == nil {
		return false
	}
	for _, at := range s.witness {
		if l.now()-at <= witnessFresh {
			return true
		}
	}
	return false
}
