package leader

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// suspicion collects the witnesses against a node.
type suspicion struct {
	recovery.Silence
	logged     bool
	unobserved bool // it was said that its ranks live
}

// witnessFresh is how long a witness's word counts; members repeat it each probe interval.
const witnessFresh = 1500 * time.Millisecond

// withoutCollectives is how many times holder_grace a silent node's job may pass steps before the node is taken for dead all the same.
const withoutCollectives = 10

func (l *Leader) silenceLimits() recovery.SilenceLimits {
	return recovery.SilenceLimits{Fresh: witnessFresh, After: l.cfg.Timing.SilentAfter, Grace: l.timing.DaemonGrace, Beyond: withoutCollectives * l.timing.HolderGrace}
}

// suspect counts a witness. A node may be dead when two nodes (or all others, where there are fewer) find it silent on gossip
// and on the data path; whether it is for a job that has ranks there, their steps say (recovery.Silence). A node that a job holds for
// dead is no witness while there is another: back from behind a partition its first words are what it found there, all others silent.
func (l *Leader) suspect(ctx context.Context, from replica.NodeName, m control.Suspect) {
	n, ok := l.view.Nodes[m.Target.Node]
	if !ok || l.heldForDead(l.view.Nodes[from]) && l.couldWitness(m.Target.Node) > 0 || n.Incarnation != m.Target.Incarnation || l.links.of[m.Target.Node] != nil && from == m.Target.Node {
		return
	}
	s := l.suspicions[m.Target]
	if s == nil {
		s = &suspicion{}
		l.suspicions[m.Target] = s
	}
	s.Hear(l.now(), from, witness(m))
	limits := l.silenceLimits()
	count := s.Witnesses(l.now(), limits)
	if count < min(2, max(1, l.couldWitness(m.Target.Node))) {
		return
	}
	if !s.logged {
		s.logged = true
		l.log.NodeState(m.Target.Node, "silent")
	}
	for id, led := range l.jobs {
		if led.job.Phase == replica.Ended {
			continue
		}
		why := s.Dead(l.now(), led.job, m.Target, limits)
		if why == "" {
			if !s.unobserved {
				s.unobserved = true
				l.log.NodeState(m.Target.Node, "unobserved")
			}
			continue
		}
		l.recoverStep(ctx, id, led, recovery.Evidence{Fault: replica.Fault{Epoch: led.job.Epoch, Kind: replica.NodeDead, Node: m.Target.Node, NodeIncarnation: m.Target.Incarnation,
			Detail: fmt.Sprintf("%s; reported by %d nodes", why, count)}})
	}
}

// witness is the word in the form of the rules.
func witness(m control.Suspect) recovery.Witness {
	w := recovery.Witness{For: milliseconds(m.SilentMS), Steps: make(map[replica.JobID]recovery.Steps, len(m.Steps))}
	for id, s := range m.Steps {
		w.Steps[id] = recovery.Steps{Still: milliseconds(s.Still), Pace: milliseconds(s.Pace), Broken: s.Broken}
	}
	return w
}

// milliseconds is a time that another node has said: at most a year.
func milliseconds(n uint64) time.Duration {
	return time.Duration(min(n, 365*24*3600*1000)) * time.Millisecond
}

// couldWitness counts the registered nodes besides one that no job holds for dead or silent, and that nobody has just found
// silent: of nodes that fall together none can speak against another. Links don't count: a leader that was just elected has
// hardly any, and one node's word must not be enough then.
func (l *Leader) couldWitness(except replica.NodeName) int {
	n := 0
	for name, node := range l.view.Nodes {
		if name != except && !l.heldForDead(node) && !l.suspected(node.Holder()) {
			n++
		}
	}
	return n
}

// heldForDead tells whether a job holds that life of a node for dead or silent. One that has ended holds its last faults for ever.
func (l *Leader) heldForDead(n replica.Node) bool {
	for _, led := range l.jobs {
		if led.job.Phase != replica.Ended && slices.ContainsFunc(led.job.Faults, func(f replica.Fault) bool {
			return f.OfNode() && f.Kind.IsCondition() && f.Node == n.Name && f.NodeIncarnation == n.Incarnation
		}) {
			return true
		}
	}
	return false
}

// suspected tells whether somebody's word against a node still counts.
func (l *Leader) suspected(h replica.Holder) bool {
	s := l.suspicions[h]
	return s != nil && s.Witnesses(l.now(), l.silenceLimits()) > 0
}

// mostTookMS bounds what a node says of how long a transfer took that failed.
const mostTookMS = 24 * 3600 * 1000

// unreached passes on what a node says of its transfers.
func (l *Leader) unreached(ctx context.Context, from replica.NodeName, m control.Unreached) {
	if led := l.jobs[m.Job]; led != nil {
		l.log.Unreached(from, m.To, m.Part, m.Fetch, m.Why)
		l.recoverStep(ctx, m.Job, led, recovery.Unreached{From: from, To: m.To, Part: m.Part, Fetch: m.Fetch, Epoch: m.Epoch, Rank: m.Rank, Took: time.Duration(min(m.TookMS, mostTookMS)) * time.Millisecond})
	}
}

// here reports whether a node's daemon is known to run. Its link alone is no sign of that: where the daemon is gone, or its host is
// silent, the link stays until its idle timeout.
func (l *Leader) here(n replica.Node) bool {
	link := l.links.of[n.Name]
	return link != nil && link.node.Incarnation == n.Incarnation && !l.suspected(n.Holder()) && l.cfg.Answers(n.Name)
}
