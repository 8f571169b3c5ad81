package recovery

import (
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// maxAwaited bounds how many waits Awaited names one by one.
const maxAwaited = 16

// Awaited says what the job waits for before it can go on, and since when, by the table of waits. It changes nothing.
func (l *Leader) Awaited(now time.Duration) (out []string) {
	return l.named(now, func(waiting) bool { return true })
}

// Overlong is Awaited of what has lasted for some time, and is not said by those who wait: the launchers of a job that opens or was closed
// hear of their own processes from their nodes, and of processes that nobody offers from the driver.
func (l *Leader) Overlong(now, least time.Duration) []string {
	kn := &l.known
	now = max(now, kn.now)
	return l.named(now, func(w waiting) bool {
		switch w.kind {
		case AwaitProcess, AwaitAttach, AwaitJoin, AwaitSeal, AwaitRegions:
			return false
		case AwaitStep: // it may be long; one beside a rank that has finished is the last
			return (w.halted || kn.anyLeft()) && now-w.since >= least
		case AwaitSurvivor, AwaitEnd:
			return kn.job.Phase == replica.Planned && now-w.since >= least
		default:
			return now-w.since >= least
		}
	})
}

func (l *Leader) named(now time.Duration, want func(waiting) bool) (out []string) {
	kn := &l.known
	if kn.job == nil || kn.job.Phase == replica.Ended {
		return nil
	}
	more := 0
	now = max(now, kn.now)
	for _, w := range l.waits(now) {
		switch {
		case !want(w):
		case len(out) < maxAwaited:
			out = append(out, w.text(now))
		default:
			more++
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}

// AllLeft tells whether all ranks have said that they are done.
func (l *Leader) AllLeft() bool {
	_, _, all := l.ending.parted()
	return all
}

// Parted tells whether all ranks have left and nothing more will be committed: what is then is how the job ends.
func (l *Leader) Parted() bool { return l.ending.complete() }

// Finishing tells whether some rank has finished in the open epoch: little is committed that is newer.
func (l *Leader) Finishing() bool { return l.known.job != nil && l.known.anyLeft() }

// Short tells for how many ranks no node offers a process, and how many processes nodes offer besides: those are full, tried, or
// kept out. It changes nothing.
func (l *Leader) Short() (ranks, offered int) {
	if l.known.job == nil || !l.known.awaitsNodes() || l.seating.short == 0 {
		return 0, 0
	}
	return l.seating.short, l.seating.seats(l.input()).left()
}

// Elsewhere names the node that would mirror a part instead of another one; false: none can.
func (l *Leader) Elsewhere(part replica.Part, from replica.NodeName) (to replica.NodeName, ok bool) {
	kn := &l.known
	if kn.job == nil || kn.job.Phase != replica.Open {
		return "", false
	}
	byRank, byGroup := l.mirrorsWith(l.trust.shunned.with(Stalled{Epoch: kn.job.Epoch, Part: part, Node: from}))
	was, is := place.At(kn.job.Mirrors, int(part.Index)), place.At(byRank, int(part.Index))
	if part.Kind != replica.PrivatePart {
		was, is = place.At(kn.job.GroupMirrors, int(part.Index)), place.At(byGroup, int(part.Index))
	}
	i := slices.IndexFunc(is, func(n replica.NodeName) bool { return !slices.Contains(was, n) })
	if i < 0 || slices.Contains(is, from) {
		return "", false
	}
	return is[i], true
}

// Unattended tells whether nobody works at the job: no launcher of it is there and none of its processes lives, by the word of every node that
// has a link.
func (l *Leader) Unattended() bool {
	if l.known.job == nil {
		return false
	}
	for n := range l.known.up {
		if _, ok := l.input().Current(n); !ok {
			return false
		}
	}
	return unattended(l.input())
}

// unattended is the same by the word of the nodes that have said something.
func unattended(in *plan.Input) bool {
	for n := range in.Nodes {
		rep, ok := in.Current(n)
		if ok && (rep.Launchers > 0 || rep.Offers > 0 || len(rep.Starting) > 0 || slices.ContainsFunc(rep.Ranks, func(r replica.RankReport) bool { return r.Alive })) {
			return false
		}
	}
	return true
}

// Known is what the planner would get now, for Survives, beside the Leader's goroutine too; ok is false before the first change of the job.
func (l *Leader) Known() (in plan.Input, ok bool) {
	if l.known.job == nil {
		return in, false
	}
	in = *l.input().Fresh(l.known.job.Job)
	in.AwaySince, in.Misfit = nil, nil // these change with the Leader
	return in, true
}
