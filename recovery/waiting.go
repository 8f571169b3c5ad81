package recovery

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// waiting is one wait of the job as it is now. What is named to people and what is judged by time is one list.
type waiting struct {
	kind    WaitKind
	rank    replica.Rank
	node    replica.NodeName
	process string
	pid     uint64
	halted  bool
	since   time.Duration
	until   time.Duration // the leader judges it then; negative: it does not, or not by time
	what    string
	why     string // what is said behind it
}

// never is the until of a wait that the leader does not judge. What has lasted since before this leader's clock began has a negative time.
const never time.Duration = math.MinInt64

// waitsForNodes are the nodes whose acknowledgement a plan needs. One that has acknowledged the fence and still settles is not silent: its
// ranks have settle_timeout, or as long as their copies take, since it last said something.
func (kn *known) waitsForNodes(in *plan.Input) (out []waiting) {
	if kn.job.ClosedEpoch >= kn.job.Epoch && kn.job.Phase == replica.Opening {
		return nil // another epoch is minted first
	}
	for _, n := range in.Required() {
		if _, ok := in.Answered(n); ok {
			continue
		}
		if rep, ok := in.Current(n); ok && rep.Fenced >= kn.job.ClosedEpoch {
			since := kn.settlesSince(rep)
			out = append(out, waiting{kind: AwaitSettle, node: n, since: since,
				until: notBefore(kn.began, since+kn.bound(AwaitSettle)+kn.copies(rep), kn.t.Ack)})
			continue
		}
		since := kn.missedSince(n)
		out = append(out, waiting{kind: AwaitAck, node: n, since: since, until: notBefore(kn.began, since+kn.bound(AwaitAck), kn.t.Ack),
			what: fmt.Sprint(kn.job.ClosedEpoch)})
	}
	return out
}

// copies is how much longer than settle_timeout a node's copies may take, by its word.
func (kn *known) copies(rep replica.NodeReport) time.Duration {
	return max(0, millis(rep.SettleMS)-kn.t.Settle)
}

// origin is how much longer the initial state of a rank may take that reads it from another run's generation: into memory that the process has had in
// reach before, so that nothing shows how far it is.
func (kn *known) origin(rep *replica.RankReport) time.Duration {
	if kn.job.From == nil || rep == nil {
		return 0
	}
	return millis(rep.LoadMS)
}

// orItsEnd is the wait for the end of a rank's process instead, where that is on its way out.
func (kn *known) orItsEnd(w waiting, rep *replica.RankReport, s sign) waiting {
	if rep.EndingMS != 0 && !w.halted {
		w.kind, w.since = AwaitEnd, s.at
		w.until = w.since + kn.bound(AwaitEnd) + millis(rep.EndingMS)
	}
	return w
}

// forRank is a wait for the process of a rank.
func (kn *known) forRank(k WaitKind, r replica.Rank, rep *replica.RankReport) waiting {
	return waiting{kind: k, rank: r, node: kn.job.Ranks[r].Node, pid: rep.PID, process: fmt.Sprintf("process %d", rep.PID),
		halted: rep.Halted, until: never}
}

// waitForLoad is what a rank waits for that has not loaded: its parts come, and then its process has to load them.
func (kn *known) waitForLoad(in *plan.Input, r replica.Rank, rep *replica.RankReport, s sign) waiting {
	p := kn.job.Plan
	w := kn.forRank(AwaitParts, r, rep)
	w.what, w.since = p.Generation.String(), kn.stageAt()
	if s.of == rep.Incarnation {
		w.since = max(w.since, s.at)
	}
	grown := millis(rep.LoadMS)
	switch {
	case w.halted: // its parts come all the same; it can do nothing with them
		w.kind, grown = AwaitLoad, 0
	case !rep.Stopped || !rep.Attached:
		w.kind, grown = AwaitSurvivor, 0
	case rep.Ordered == p.Epoch:
		w.kind = AwaitLoad
	case fromDisk(kn.job.Job, r):
		w.kind = AwaitRead
	}
	if (w.kind == AwaitParts || w.kind == AwaitRead) && rep.Failing != "" {
		w.why = ": " + rep.Failing
	}
	w.until = w.since + kn.bound(w.kind) + grown
	if planted.NeverLoads && w.kind == AwaitLoad {
		w.until = never
	}
	return kn.orItsEnd(w, rep, s)
}

// fromDisk tells whether some part that a rank is to load comes from the durable tier.
func fromDisk(j *replica.Job, r replica.Rank) bool {
	for _, part := range partsOf(j, r) {
		if src, ok := j.Plan.Source(part); ok && src.Tier == replica.Disk {
			return true
		}
	}
	return false
}

func partsOf(j *replica.Job, r replica.Rank) []replica.Part {
	return []replica.Part{replica.OfGroup(j.Layout.Groups[r]), replica.OfRank(r)}
}

// waitsForMirrors are the mirrors that have not got what was loaded.
func (kn *known) waitsForMirrors(in *plan.Input, loaded time.Duration) (out []waiting) {
	p, copies := kn.job.Plan, in.CopiesPossible()
	for _, src := range p.Sources {
		holders := in.Holding(src.Part, p.Generation, src.Root)
		if len(holders) >= copies {
			continue
		}
		lists := p.Mirrors
		if src.Part.Kind == replica.ReplicatedPart {
			lists = p.GroupMirrors
		}
		for _, n := range place.At(lists, int(src.Part.Index)) {
			if !slices.ContainsFunc(holders, func(h replica.Holder) bool { return h.Node == n }) {
				out = append(out, waiting{kind: AwaitMirror, node: n, since: loaded, until: never, what: fmt.Sprintf("%v of %v", src.Part, p.Generation)})
			}
		}
	}
	return out
}

// text says the wait as the table has it.
func (w waiting) text(now time.Duration) string {
	says := Waits[w.kind].Says
	if w.halted {
		says = saysHalted
	}
	return strings.NewReplacer("{rank}", fmt.Sprint(w.rank), "{process}", w.process, "{pid}", fmt.Sprint(w.pid), "{node}", string(w.node),
		"{since}", max(now-w.since, 0).Round(time.Second).String(), "{what}", w.what).Replace(says) + w.why
}

// waitsForGrown are the ranks that have not sealed their step with the new regions. Of each the time counts for itself: the daemons have the
// memory, and nobody waits for another.
func (kn *known) waitsForGrown(in *plan.Input, seals []waiting) []waiting {
	for i, w := range seals {
		if w.kind == AwaitSeal {
			w.kind, w.since = AwaitGrown, max(kn.signs[w.rank].at, kn.stageAt())
			w.what = fmt.Sprintf("step %d", kn.job.Growth.Step)
			w.until = w.since + kn.bound(AwaitGrown) + grownTime(in.Job)
			seals[i] = w
		}
	}
	return seals
}

// bound is how long a wait may last, without what grows.
func (kn *known) bound(k WaitKind) time.Duration {
	d, _ := Waits[k].Bound.Of(kn.t)
	return d
}
