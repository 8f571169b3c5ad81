package recovery

import (
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// maxEvidence bounds the faults that wait to be recorded; what is dropped is seen again by whoever saw it.
const maxEvidence = 4096

// known is what a leader has learned of its job and of the nodes, by whatever epoch. It asks for nothing and proposes nothing.
type known struct {
	id       replica.JobID
	t        Timing
	now      time.Duration
	began    time.Duration // negative: not yet
	job      *plan.Record
	nodes    map[replica.NodeName]replica.Node
	reports  map[replica.Holder]replica.NodeReport // newest of each life of a node's memory
	heard    map[replica.Holder]time.Duration      // when its last report came
	signs    map[replica.Rank]sign
	up       map[replica.NodeName]bool
	away     map[replica.NodeName]time.Duration // since when missed, since this leader began to
	came     map[replica.NodeName]bool          // this leader has seen them go, or come anew
	evidence map[plan.FaultKey]replica.Fault    // accepted, not yet recorded
	faults   recorded
	clocks   Clocks // since when what has lasted: the job's
	reach    reach  // who can't have parts from whom
	stage    stage  // where the job is, and since when
	made     plan.Furthest

	committed replica.Step
	owned     []*replica.RankReport // what follows from the reports, counted once a step
}

// recorded is the faults that the state machine has, and when they came. A closing leaves them: what a survivor is awaited for counts
// from the fault, which may come before its epoch is closed.
type recorded struct {
	list []replica.Fault                  // when last looked
	last time.Duration                    // when one last came
	at   map[replica.Holder]time.Duration // when the newest fault of a node was seen first
}

func newKnown(job replica.JobID, t Timing) known {
	return known{id: job, t: t, began: -1, reach: reach{}, reports: make(map[replica.Holder]replica.NodeReport),
		heard: make(map[replica.Holder]time.Duration), signs: make(map[replica.Rank]sign), up: make(map[replica.NodeName]bool),
		away: make(map[replica.NodeName]time.Duration), came: make(map[replica.NodeName]bool),
		evidence: make(map[plan.FaultKey]replica.Fault), faults: recorded{at: make(map[replica.Holder]time.Duration)}}
}

// awaitsNodes tells whether a plan is being made, which waits for every node: then the fault of any matters.
func (kn *known) awaitsNodes() bool {
	return kn.job.Phase == replica.Closed || kn.job.Phase == replica.Opening
}

// news: a change is of this job, and no older than what is known.
func (kn *known) news(ev JobChanged) bool {
	return ev.Job != nil && ev.Job.ID == kn.id && (kn.job == nil || ev.Job.LastIndex >= kn.job.LastIndex && !olderNodes(ev.Nodes, kn.nodes))
}

// follow takes the job and the nodes as they are now, and lists the nodes that have registered since.
func (kn *known) follow(ev JobChanged) (renewed []replica.NodeName) {
	first := kn.job == nil
	for name, n := range ev.Nodes {
		if was := kn.nodes[name]; was.Incarnation != n.Incarnation || was.Session != n.Session {
			renewed = append(renewed, name)
			delete(kn.away, name)
			kn.reach.renewed(name)
			if kn.came[name] = kn.came[name] || !first; kn.came[name] {
				kn.clocks.End(missedClock(kn.job, name))
			}
		}
	}
	if kn.nodes = ev.Nodes; first || kn.job.Job != ev.Job {
		kn.job = plan.NewRecord(ev.Job)
	}
	for h := range kn.reports {
		// A life of a node's memory that was followed by a registered and reporting one says nothing more.
		if n, ok := kn.nodes[h.Node]; ok && n.Incarnation != h.Incarnation {
			if _, reporting := kn.reports[replica.Holder{Node: h.Node, Incarnation: n.Incarnation}]; reporting {
				delete(kn.reports, h)
				delete(kn.heard, h)
			}
		}
	}
	kn.learnStage(first)
	return renewed
}

// commits takes note of a newer committed step: recoveries before it count no more.
func (kn *known) commits() {
	kn.committed = kn.job.Position.Step
	kn.clocks.EndAll(func(k replica.Clock) bool { return kn.endedClock(k) && k.Kind == clockRecovered })
}

// linked takes note that a node has a link: it has its time to answer.
func (kn *known) linked(n replica.NodeName) {
	kn.up[n] = true
	delete(kn.away, n)
	kn.clocks.End(goneClock(n, kn.nodes[n]))
	if kn.came[n] {
		kn.clocks.End(missedClock(kn.job, n))
	}
}

// gone takes note that a node's link is lost.
func (kn *known) gone(n replica.NodeName) {
	delete(kn.up, n)
	kn.clocks.End(goneClock(n, kn.nodes[n]))
	kn.clocks.Since(kn.now, goneClock(n, kn.nodes[n]))
	kn.came[n] = true
	kn.reach.gone(n)
}

// learnFaults takes note of when faults came, and of nodes whose faults have ended.
func (kn *known) learnFaults(first bool) {
	if first || anyNew(kn.job.Faults, kn.faults.list) {
		kn.faults.last = kn.now
	}
	for _, f := range kn.job.Faults {
		if f.OfNode() && (first || !slices.Contains(kn.faults.list, f)) {
			kn.faults.at[replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}] = kn.now
		}
	}
	maps.DeleteFunc(kn.faults.at, func(h replica.Holder, _ time.Duration) bool {
		return !slices.ContainsFunc(kn.job.Faults, func(f replica.Fault) bool {
			return f.Node == h.Node &&
				f.NodeIncarnation == h.Incarnation
		})
	})
	for _, f := range kn.faults.list {
		if f.OfNode() && f.Epoch == kn.job.Epoch && !slices.Contains(kn.job.Faults, f) {
			delete(kn.away, f.Node) // it has registered again, and has its time to answer: nobody waited for it before
			kn.clocks.End(missedClock(kn.job, f.Node))
			kn.came[f.Node] = true
		}
	}
	kn.faults.list = kn.job.Faults
}

// anyNew tells whether a list of faults has one that another has not.
func anyNew(faults, than []replica.Fault) bool {
	had := make(map[replica.Fault]bool, len(than))
	for _, f := range than {
		had[f] = true
	}
	return slices.ContainsFunc(faults, func(f replica.Fault) bool { return !had[f] })
}

// olderNodes tells whether a view of the nodes is from before another: a node's session or life in it was superseded.
func olderNodes(view, than map[replica.NodeName]replica.Node) bool {
	for name, n := range than {
		v, known := view[name]
		if !known || v.Incarnation == n.Incarnation && v.Session < n.Session || slices.Contains(n.Former, v.Incarnation) {
			return true
		}
	}
	return false
}

// fenced drops the times that earlier epochs took. A node that the job has something recorded on has its time from each fence on.
func (kn *known) fenced(first bool) {
	kn.clocks.forget(kn.job.ClosedEpoch)
	maps.DeleteFunc(kn.away, func(n replica.NodeName, _ time.Duration) bool { return kn.job.Involved(n) })
	under := kn.job.Phase == replica.Closed || kn.job.Phase == replica.Planned
	if (!first || under) && kn.job.Growth == nil { // a growth closes an epoch, and recovers nothing
		kn.clocks.Since(kn.now, kn.recoveredClock())
	}
}

func (kn *known) learnReport(r replica.NodeReport) {
	if r.Job != kn.id {
		return
	}
	old, seen := kn.reports[r.Holder]
	if seen && (r.Session < old.Session || r.Session == old.Session && r.Seq < old.Seq) {
		return
	}
	kn.reports[r.Holder], kn.heard[r.Holder] = r, kn.now
	kn.learnSigns(r)
	kn.stage.hear(kn.now, r)
	if kn.job != nil {
		kn.made.Learn(kn.job.Job, r.Ranks)
	}
	kn.up[r.Holder.Node] = true
}

// admissible tells whether a node may be given ranks: nothing is held against it.
func (kn *known) admissible(n replica.NodeName) bool {
	return kn.job.Admits(replica.Holder{Node: n, Incarnation: kn.nodes[n].Incarnation})
}

// missed keeps account of since when each node has not answered, in all phases: one that the job has nothing recorded on and
// that was silent for ack_timeout before a fault delays no recovery, however many there are.
func (kn *known) missed(in *plan.Input) {
	kn.clocks.endTold(func(k replica.Clock) bool { return kn.endedClock(k) })
	for n := range kn.nodes {
		if k := goneClock(n, kn.nodes[n]); kn.up[n] {
			kn.clocks.End(k)
		} else {
			kn.clocks.Since(kn.now, k)
		}
		if _, ok := in.Answered(n); ok {
			delete(kn.away, n)
			kn.clocks.End(missedClock(kn.job, n))
		} else {
			kn.miss(n)
		}
	}
}

// miss counts from when a node was missed, by this leader: of one that it has not heard yet, by an earlier one too.
func (kn *known) miss(n replica.NodeName) {
	if _, ok := kn.away[n]; !ok {
		kn.away[n] = kn.now
	}
	since := kn.clocks.Since(kn.now, missedClock(kn.job, n))
	if !kn.up[n] && !kn.came[n] {
		kn.away[n] = min(kn.away[n], since)
	}
}

// goneClock is that of a node which has no link to the leader.
func goneClock(name replica.NodeName, n replica.Node) replica.Clock {
	return replica.Clock{Kind: clockGone, Node: name, Of: uint64(n.Incarnation)<<32 ^ uint64(n.Session)}
}

// missedClock is that of a node which has not answered. One that the job has something recorded on has its time from each fence on.
func missedClock(job *plan.Record, n replica.NodeName) replica.Clock {
	k := replica.Clock{Kind: clockMissed, Node: n}
	if job != nil && job.Involved(n) {
		k.Epoch = job.ClosedEpoch
	}
	return k
}

// goneAt is since when a node has had no link to a leader, as far as this one knows.
func (kn *known) goneAt(n replica.NodeName) time.Duration {
	if at, ok := kn.clocks.At(goneClock(n, kn.nodes[n])); ok {
		return at
	}
	return kn.now
}

// notBefore is until, unless this leader has just begun: whoever is to be there by then has a third of its time to link first.
func notBefore(began, until, bound time.Duration) time.Duration { return max(until, began+bound/3) }

// endedClock tells whether a clock that an earlier leader handed out is of something that is over.
func (kn *known) endedClock(k replica.Clock) bool {
	switch k.Kind {
	case clockGone:
		return kn.up[k.Node] || k != goneClock(k.Node, kn.nodes[k.Node])
	case clockVacant, clockOffered:
		return int(k.Rank) >= len(kn.job.Ranks) || !kn.job.Vacant(k.Rank) || uint64(kn.job.Ranks[k.Rank].Incarnation) != k.Of
	case clockRecovered:
		return k.Of < uint64(kn.committed)
	default:
		return k.Epoch != 0 && k.Epoch < kn.job.ClosedEpoch
	}
}

// absent tells whether a node has had no stream to the leader for daemon_grace: until then its daemon may just be restarted.
func (kn *known) absent(n replica.NodeName) bool { return !kn.up[n] && kn.now >= kn.backBy(n) }

func (kn *known) backBy(n replica.NodeName) time.Duration {
	return notBefore(kn.began, kn.goneAt(n)+kn.t.DaemonGrace, kn.t.DaemonGrace)
}

// cutOff is misfit by what is known now.
func (kn *known) cutOff(from, mirror replica.NodeName) bool {
	return kn.absent(mirror) || kn.reach.cut(from, mirror, kn.now)
}
