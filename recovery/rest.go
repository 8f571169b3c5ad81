package recovery

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/replica"
)

// sign is what was last seen of a process, and since when it has been so: a deadline counts from there, and never from what others do.
type sign struct {
	of replica.Incarnation
	// What changes as a process gets on with coming to rest.
	attached bool
	stopped  bool
	live     replica.Word
	progress uint64 // the most so far, of a process without state of the job: what a survivor maps says nothing of its way to rp_join

	first time.Duration // when it was first seen
	at    time.Duration // when one of these last changed
}

// learnSigns takes the signs of life of a node's ranks from its report.
func (l *Leader) learnSigns(r replica.NodeReport) {
	for _, rr := range r.Ranks {
		was, known := l.signs[rr.Rank]
		if known && was.of > rr.Incarnation || !rr.Alive {
			continue
		}
		is := sign{of: rr.Incarnation, attached: rr.Attached, stopped: rr.Stopped, live: rr.Live, first: l.now, at: l.now}
		if rr.Loaded == 0 {
			is.progress = rr.Progress
		}
		if known && was.of == is.of {
			is.progress = max(is.progress, was.progress) // memory that comes and goes is no way forward
			if is.first = was.first; is.attached == was.attached && is.stopped == was.stopped && is.live == was.live && is.progress == was.progress {
				is.at = was.at
			}
		}
		l.signs[rr.Rank] = is
	}
}

// restBy is until when a process may come to rest. One that has no state of this job yet starts: it has timing.start since it
// last got on with that (attached, had more of its memory in reach). A survivor has what settling takes since the fault.
func (l *Leader) restBy(rep replica.RankReport) time.Duration {
	s, known := l.signs[rep.Rank]
	if !known || s.of != rep.Incarnation {
		return l.now + l.t.Start
	}
	if rep.Loaded == 0 {
		return s.at + l.t.Start
	}
	return max(l.lastFault, s.at) + l.t.Settle + l.t.Ack
}

// awaitRest gives up on attached processes that don't come to rest: what they wait for went down with the epoch.
func (l *Leader) awaitRest(in *PlanInput, ranks []replica.Rank) {
	if l.job.Phase != replica.Closed {
		return
	}
	for _, r := range ranks {
		rep, ok := in.rank(r)
		if !ok || rep.Stopped {
			continue
		}
		if until := l.restBy(rep); l.now < until {
			l.wakeAt(until)
			continue
		}
		detail := fmt.Sprintf("not at rest %v after the fault", l.now-l.lastFault)
		if rep.Loaded == 0 {
			detail = fmt.Sprintf("it has attached, and got no further for %v (timing.start)", l.t.Start)
		}
		l.learnFault(replica.Fault{Kind: replica.Hang, Rank: r, Incarnation: rep.Incarnation, Epoch: l.job.Epoch, Detail: detail})
	}
	l.assertFaults()
}

// maxAwaited bounds how many ranks Awaited names one by one.
const maxAwaited = 16

// Awaited says which process each rank waits for before the job can go on, and since when. It changes nothing.
func (l *Leader) Awaited(now time.Duration) (out []string) {
	if l.job == nil || !l.awaitsNodes() {
		return nil
	}
	in, more := l.input(), 0
	for r := range l.job.Ranks {
		text := l.awaited(in, replica.Rank(r), max(now, l.now))
		switch {
		case text == "":
		case len(out) < maxAwaited:
			out = append(out, text)
		default:
			more++
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more ranks", more))
	}
	return out
}

func (l *Leader) awaited(in *PlanInput, r replica.Rank, now time.Duration) string {
	since := func(at time.Duration) time.Duration { return (now - at).Round(time.Second) }
	if l.job.vacant(r) {
		o := l.offers[r]
		switch {
		case o == nil || o.node == "":
			return fmt.Sprintf("rank %d: no node has a process for it", r) + in.shortages()
		case !l.seats(in).starts(o.node, r):
			return fmt.Sprintf("rank %d: offered to node %s %v ago, which has not started a process yet", r, o.node, since(o.at))
		}
		return fmt.Sprintf("rank %d: %s on node %s has run %v and has not called resume() yet (rp_attach)", r, startingProcess(in, o.node, r), o.node, since(o.at)) + in.shortages()
	}
	rep, ok := in.rank(r)
	s := l.signs[r]
	switch node := l.job.Ranks[r].Node; {
	case !ok || rep.Stopped || in.sealedInitial(rep) || s.of != rep.Incarnation:
		return ""
	case rep.Halted:
		return fmt.Sprintf("rank %d: process %d on node %s is stopped by a signal (kill -CONT %d)", r, rep.PID, node, rep.PID)
	case rep.Loaded == 0 && l.job.Phase == replica.Opening:
		return fmt.Sprintf("rank %d: process %d on node %s attached %v ago and has not sealed its initial state yet", r, rep.PID, node, since(s.first))
	case rep.Loaded == 0:
		return fmt.Sprintf("rank %d: process %d on node %s has attached and has been on its way to rp_join for %v", r, rep.PID, node, since(s.first))
	default:
		return fmt.Sprintf("rank %d: process %d on node %s runs on, %v after the fault: it has not called resume() again (rp_join)", r, rep.PID, node, since(l.lastFault))
	}
}

// startingProcess names the process that a node runs for a rank and that has not attached.
func startingProcess(in *PlanInput, n replica.NodeName, r replica.Rank) string {
	rep := in.Reports[n]
	for i, s := range rep.Starting {
		if s == r && i < len(rep.StartingPIDs) && rep.StartingPIDs[i] != 0 {
			return fmt.Sprintf("process %d", rep.StartingPIDs[i])
		}
	}
	return "its process"
}
