package host

import (
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// untaken is an offer of the leader that no launcher here is known to have taken up.
type untaken struct {
	expect replica.Incarnation
	since  time.Time
	by     *launcher // that was asked to start a process; nil: none yet
	asked  time.Time
}

// reapPatience is how long a launcher has to tell of the end of a rank's process, which is known, before another one is asked for the next.
const reapPatience = time.Second

// takeUp is how long a launcher may take to say that it has started a process. One that is stopped says nothing for ever.
func (h *Host) takeUp() time.Duration { return max(reapPatience, h.cfg.Timing.Claim/3) }

// offered starts a process for a rank that lost its own, as the leader asks.
func (h *Host) offered(o control.Offer) {
	lj := h.jobs[o.Job]
	if lj == nil || int(o.Rank) >= len(lj.job.Ranks) || lj.job.Ranks[o.Rank].Incarnation != o.Expect {
		return
	}
	if u := lj.untaken[o.Rank]; u == nil || u.expect != o.Expect {
		lj.untaken[o.Rank] = &untaken{expect: o.Expect, since: time.Now()}
	}
	h.tryOffer(lj, o.Rank)
}

// takeOffers finds launchers for the offers that none has taken up.
func (h *Host) takeOffers(lj *localJob) {
	for _, r := range slices.Sorted(maps.Keys(lj.untaken)) {
		h.tryOffer(lj, r)
	}
}

func (h *Host) tryOffer(lj *localJob, r replica.Rank) {
	u := lj.untaken[r]
	if int(r) >= len(lj.job.Ranks) || lj.job.Ranks[r].Incarnation != u.expect || lj.job.Phase == replica.Open || lj.job.Phase == replica.Ended || h.takeOffer(lj, r, u) {
		delete(lj.untaken, r)
	}
}

// takeOffer tells whether an offer is settled: a process runs for the rank, or its launcher said that none does.
func (h *Host) takeOffer(lj *localJob, r replica.Rank, u *untaken) bool {
	if l := u.by; l != nil {
		_, here := h.launchers[l.peer.ID()]
		switch {
		case !here || !l.runs(r) || l.starts.of(r).pid != 0:
			return true // where no process runs the leader offers the rank again
		case time.Since(u.asked) < h.takeUp() && !h.halted(l):
			return false
		}
		next := h.freeLauncher(lj, l)
		if next == nil {
			l.deaf = true
			return false
		}
		h.giveUpOn(lj, l, r, next)
		u.by, u.asked = next, time.Now()
		h.startRank(lj, next, r)
		h.report(lj)
		return false
	}
	for _, l := range h.launchers {
		if l.hello.Job != lj.job.Name || !l.runs(r) {
			continue
		}
		if lr := lj.ranks[r]; !l.starts.of(r).attached || lr == nil || lr.alive() {
			return true // on its way already
		}
		if time.Since(u.since) < reapPatience && !h.halted(l) {
			return false // it is about to say that its process ended
		}
	}
	l := h.freeLauncher(lj, nil)
	if l == nil {
		return true
	}
	u.by, u.asked = l, time.Now()
	h.startRank(lj, l, r)
	h.report(lj)
	return false
}

// freeLauncher picks a launcher that answers and could start a process; the one that has been here longest.
func (h *Host) freeLauncher(lj *localJob, but *launcher) *launcher {
	for _, id := range slices.Sorted(maps.Keys(h.launchers)) {
		if l := h.launchers[id]; l != but && l.accepted && l.hello.Job == lj.job.Name && l.free() > 0 && !l.deaf && !l.done && !h.halted(l) {
			return l
		}
	}
	return nil
}

// giveUpOn withdraws a start that a launcher has not taken up. Awake again it finds the start and right after it the stop.
func (h *Host) giveUpOn(lj *localJob, l *launcher, r replica.Rank, next *launcher) {
	l.starts.over(r)
	l.deaf = true
	l.peer.Send(wire.RankHeader{Type: wire.MRunStop, Epoch: lj.job.Epoch}, wire.RunStop{Rank: r, Signal: uint32(syscall.SIGKILL)}.Append(nil)) //nolint:errcheck // a dead peer is Gone
	text := fmt.Sprintf("the launcher of process %d has not started a process for rank %d, and is stopped or hangs: this one is asked", l.peer.PID(), r)
	h.log.RankNote(lj.job, r, "launcher", text)
	h.note(next, lj.job, text)
}

// halted tells whether the launcher is stopped by a signal.
func (h *Host) halted(l *launcher) bool {
	return h.processes.Halted(l.peer.PID(), l.peer.StartTime())
}
