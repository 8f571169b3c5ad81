package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

// Finished begins the reason of a job whose ranks have all left: its launchers exit 0.
const Finished = "finished"

// HasFinished tells whether a job ended because its ranks had all left.
func HasFinished(j *replica.Job) bool {
	return j.Phase == replica.Ended && (j.EndReason == Finished || strings.HasPrefix(j.EndReason, Finished+" at step "))
}

// partingGrace is how long a job whose ranks have all left stays open at least for a commit of what they hold (AwaitCommit); and partingPaces times
// the longest time between two commits of the epoch, since the copies of a large state take as long as they take. Beyond that something is lost that
// is not to come back before the ranks' patience ends.
const (
	partingGrace = 10 * time.Second
	partingPaces = 3
)

// pace is when the newest commit of an epoch came.
type pace struct {
	epoch replica.Epoch
	at    time.Duration
}

// commits takes a commit, and how long it took from the one before: more than the bound of AwaitCommit at least asks for is worth knowing.
func (p *pace) commits(e replica.Epoch, now time.Duration, c *Clocks) {
	if k := (replica.Clock{Kind: measureSpace, Epoch: e}); p.epoch == e && partingPaces*(now-p.at) > partingGrace {
		if took := uint64((now - p.at).Milliseconds()); took > c.Measure(k) {
			c.Set(k, took)
		}
	}
	p.epoch, p.at = e, now
}

// grace is how long the job stays open for its last commit.
func (en *ending) grace() time.Duration {
	kn := en.known
	return max(kn.bound(AwaitCommit), partingPaces*millis(kn.clocks.Measure(replica.Clock{Kind: measureSpace, Epoch: kn.job.Epoch})))
}

// partedAt is since when all ranks have left.
func partedAt(c *Clocks, now time.Duration, e replica.Epoch) time.Duration {
	return c.Since(now, replica.Clock{Kind: clockParted, Epoch: e})
}

// parting is the end of a job whose ranks have all left.
type parting struct {
	epoch replica.Epoch // that they left in; 0: they have not
}

// complete: all ranks have left, and nothing more will be committed.
func (en *ending) complete() bool {
	kn := en.known
	last, held, all := en.parted()
	return all && (kn.job.Position.Step >= min(last, held) || en.parting.epoch == kn.job.Epoch &&
		kn.now >= partedAt(&kn.clocks, kn.now, kn.job.Epoch)+en.grace())
}

// finish ends a job whose ranks have all left, once the newest step that all of them hold is committed and, where the job writes to the
// durable tier, lies there.
func (en *ending) finish() {
	kn := en.known
	j := kn.job
	last, held, all := en.parted()
	if !all {
		kn.clocks.endOwn(replica.Clock{Kind: clockParted, Epoch: j.Epoch})
		en.parting = parting{}
		return
	}
	if en.parting.epoch != j.Epoch {
		en.parting = parting{epoch: j.Epoch}
	}
	switch until := partedAt(&kn.clocks, kn.now, kn.job.Epoch) + en.grace(); {
	case !en.complete():
		en.outbox.note("waiting", fmt.Sprintf("all ranks have left, and step %d is to be committed", min(last, held)),
			map[string]string{"why": "last commit"})
		en.outbox.wakeAt(until)
		return
	case en.unwritten():
		return
	}
	reason := Finished
	switch {
	case j.Position.Step < last:
		reason = fmt.Sprintf("%s at step %d, newest commit step %d", Finished, last, j.Position.Step)
	case j.Undurable():
		reason = fmt.Sprintf("%s at step %d, which is NOT on disk: the newest step there is %d", Finished, last, j.Durable.Step)
	}
	en.outbox.propose(replica.EndJob{Job: kn.id, Reason: reason, Epoch: j.Epoch})
}

// unwritten tells whether the last commit is still to be written to the durable tier. Writes that fail are tried again for as long as a stopped job
// stays in memory.
func (en *ending) unwritten() bool {
	kn := en.known
	j, until := kn.job, partedAt(&kn.clocks, kn.now, kn.job.Epoch)+kn.bound(AwaitReturn)
	if !j.Undurable() || en.writesOver || j.Writer == nil && kn.t.Abandoned > 0 && kn.now >= until {
		return false
	}
	en.outbox.note("waiting", fmt.Sprintf("all ranks have left, and step %d is to be written to the durable tier", j.Committed.Step),
		map[string]string{"why": "last durable write"})
	if kn.t.Abandoned > 0 {
		en.outbox.wakeAt(until)
	}
	return true
}

// parted looks at the ranks of a job that have all said that they are done: the step at which the last of them left, and the newest one
// that all of them hold whole, beyond which nothing can be committed.
func (en *ending) parted() (last, held replica.Step, all bool) {
	kn := en.known
	if len(kn.job.Ranks) > 0 && !en.firstLeft() { // asked with each report, and mostly answered by this
		return 0, 0, false
	}
	ranks := kn.own()
	for r, c := range kn.job.Ranks {
		if rr := ranks[r]; rr == nil || !rr.Left || c.Incarnation == 0 {
			return 0, 0, false
		}
		last = max(last, ranks[r].Live.Step())
	}
	var common []replica.Step
	for r, own := range en.sealedSteps() {
		if r > 0 {
			own = slices.DeleteFunc(own, func(s replica.Step) bool { return !slices.Contains(common, s) })
		}
		common = own
	}
	if len(common) > 0 {
		held = slices.Max(common)
	}
	return last, held, len(kn.job.Ranks) > 0
}

// firstLeft tells whether rank 0 has said that it is done.
func (en *ending) firstLeft() bool {
	c := en.known.job.Ranks[0]
	rep := en.known.reports[replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation}]
	return slices.ContainsFunc(rep.Ranks, func(rr replica.RankReport) bool { return rr.Rank == 0 && rr.Incarnation == c.Incarnation && rr.Left })
}

// sealedSteps are by rank those of the present epoch of which it has both parts in its own arena.
func (en *ending) sealedSteps() [][]replica.Step {
	kn := en.known
	const group, own = 1, 2
	has := make([]map[replica.Step]int, len(kn.job.Ranks))
	for at, rep := range kn.reports {
		for _, h := range rep.Parts {
			if int(h.Rank) >= len(has) || h.Mirror || h.Generation.Epoch != kn.job.Epoch || kn.job.Ranks[h.Rank].Node != at.Node ||
				kn.job.Ranks[h.Rank].NodeIncarnation != at.Incarnation {
				continue
			}
			if has[h.Rank] == nil {
				has[h.Rank] = make(map[replica.Step]int)
			}
			switch h.Part {
			case replica.OfGroup(kn.job.Layout.Groups[h.Rank]):
				has[h.Rank][h.Generation.Step] |= group
			case replica.OfRank(h.Rank):
				has[h.Rank][h.Generation.Step] |= own
			}
		}
	}
	steps := make([][]replica.Step, len(has))
	for r, parts := range has {
		for step, what := range parts {
			if what == group|own {
				steps[r] = append(steps[r], step)
			}
		}
	}
	return steps
}

// waitsForEnd are what a job waits for whose ranks have all left.
func (en *ending) waitsForEnd() []waiting {
	kn := en.known
	last, held, all := en.parted()
	switch {
	case !all || en.parting.epoch != kn.job.Epoch:
		return nil
	case !en.complete():
		return []waiting{{kind: AwaitCommit, since: partedAt(&kn.clocks, kn.now, kn.job.Epoch), until: never,
			what: fmt.Sprint(min(last, held))}}
	case kn.job.Undurable() && !en.writesOver:
		return []waiting{{kind: AwaitWrite, since: partedAt(&kn.clocks, kn.now, kn.job.Epoch), until: never,
			what: fmt.Sprint(kn.job.Committed.Step)}}
	}
	return nil
}
