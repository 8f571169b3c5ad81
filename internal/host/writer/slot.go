package writer

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// lack is since when the next commit lacks the slot that a write holds. It counts on through candidates that lapse: where a rank finds no place for
// one, the leader names another further ahead, and each lack by itself may be short.
type lack struct {
	wait time.Time    // since when that commit waits
	at   time.Time    // since when it lacks the slot; zero: it does not
	step replica.Step // how far ranks here were then
}

// learn takes in whether a commit that waits since a time lacks the slot now.
func (l *lack) learn(now, wait time.Time, lacks bool, furthest replica.Step) {
	if l.wait != wait {
		*l = lack{wait: wait}
	}
	if lacks && l.at.IsZero() {
		l.at, l.step = now, furthest
	}
}

// steps is how many were made since.
func (l lack) steps(furthest replica.Step) replica.Step { return max(furthest, l.step) - l.step }

// over tells whether the commit has lacked the slot for long enough. Of steps shorter than a look more than the bound are made: a commit that is late by
// one look costs nobody anything.
func (l lack) over(now time.Time, furthest replica.Step) bool {
	return !l.at.IsZero() && (now.Sub(l.at) >= recovery.SlotWait || l.steps(furthest) >= recovery.SlotSteps)
}

// lacks tells whether the candidate lacks the slot that a write holds: a rank has come to its step, and finds no place. Before that the write keeps nobody
// waiting. Where no rank's steps are known here, only the places tell.
func lacks(v room.JobView, w *Write) bool {
	at := v.Furthest(v.Candidate.Generation.Epoch)
	return (at == 0 || at >= v.Candidate.Position.Step) && w.crowds(v.Candidate.Generation)
}

// judge gives a write up that keeps its slot from a commit for long, whether or not it moves, and tells the leader of one that may come to that.
func (r *Room) judge(now time.Time, v room.JobView, j *job, w *Write) {
	if !w.holds() || !room.Awaited(v.Candidate, v.Job) {
		w.lack = lack{}
		return
	}
	at := v.Furthest(v.Candidate.Generation.Epoch)
	w.lack.learn(now, v.WaitsAt, lacks(v, w), at)
	switch {
	case w.lack.at.IsZero():
	case w.lack.over(now, at):
		r.giveUp(now, v, j, w, w.lack.steps(at))
	default:
		r.sayLate(now, w)
	}
}

// giveUp frees the slot that a write holds.
func (r *Room) giveUp(now time.Time, v room.JobView, j *job, w *Write, steps replica.Step) {
	late := now.Sub(w.lack.at).Round(100 * time.Millisecond)
	r.skip(now, j, w, fmt.Sprintf("the commit of step %d lacked its slot for %v, in which ranks here made %d steps: the slot is free for that, and this write is skipped. %s", v.Candidate.Position.Step, late, steps, w.ails(now)), true)
}

// ails says what kept a write for long, and the remedy.
func (w *Write) ails(now time.Time) string {
	const mib = 20
	by, is, remedy := w.store, "read for it", "Give the daemon a spool_dir on a local disk with room for the part"
	if on := w.road.Load(); on != nil && on.through != "" {
		by, is, remedy = "the file system of spool_dir", "copied to "+on.through, "Give it a faster local disk"
	} else if on != nil {
		remedy = fmt.Sprintf("%s (%v)", remedy, on.why)
	}
	remedy += ", or the job more slots (--slots)"
	if by == w.store && !w.turned {
		return "Other nodes wrote first (durable_writers of the leader's node). " + remedy
	}
	if since := now.Sub(w.seen.at); since >= stuck {
		return fmt.Sprintf("No byte of it was taken for %v: see what ails %s. %s", since.Round(time.Second), by, remedy)
	}
	read, of := w.progress()
	return fmt.Sprintf("%d of %d MiB were %s: %s is slow for that. %s", read>>mib, of>>mib, is, by, remedy)
}

// sayLate tells the leader that a write holds a commit up: that is no fault yet, and not silent.
func (r *Room) sayLate(now time.Time, w *Write) {
	late := now.Sub(w.lack.at)
	if w.seen.n == 0 || late < lateEvery || now.Sub(w.lateAt) < lateEvery {
		return
	}
	w.lateAt = now
	r.report(w.report(func(s *control.ShardReport) { s.Written, s.LateMS = uint64(w.seen.n), uint64(late.Milliseconds()) }))
}
