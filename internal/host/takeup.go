package host

import (
	"cmp"
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

// takeUp is how long a launcher that was asked to start processes may say nothing. One that is stopped says nothing for ever.
func (h *Host) takeUp() time.Duration { return max(reapPatience, h.cfg.Timing.Claim/3) }

// offered starts processes for ranks that lost their own, as the leader asks.
func (h *Host) offered(o control.Offers) {
	lj := h.jobs[o.Job]
	if lj == nil {
		return
	}
	for r, expect := range o.In(len(lj.job.Ranks)) {
		if u := lj.untaken[r]; lj.job.Ranks[r].Incarnation == expect && (u == nil || u.expect != expect) {
			lj.untaken[r] = &untaken{expect: expect, since: time.Now()}
		}
	}
	h.takeOffers(lj)
}

// takeOffers finds launchers for the offers that none has taken up, and tells the leader which were asked: of all of them at once.
func (h *Host) takeOffers(lj *localJob) {
	news, busy := false, false
	for _, r := range slices.Sorted(maps.Keys(lj.untaken)) {
		u := lj.untaken[r]
		if int(r) >= len(lj.job.Ranks) || lj.job.Ranks[r].Incarnation != u.expect || lj.job.Phase == replica.Open || lj.job.Phase == replica.Ended {
			delete(lj.untaken, r)
			continue
		}
		if busy && u.by == nil {
			continue // nobody may be asked for this one either
		}
		switch h.takeOffer(lj, r, u) {
		case settled:
			delete(lj.untaken, r)
		case begun:
			news = true
		case allBusy:
			busy = true
		case open:
		}
	}
	if news {
		h.report(lj)
	}
}

// took is what became of an offer.
type took uint8

const (
	open    took = iota
	settled      // a process runs for the rank, its launcher said that none does, or nobody could start one
	begun        // a launcher was asked just now
	allBusy      // those that could start one have enough to start
)

func (h *Host) takeOffer(lj *localJob, r replica.Rank, u *untaken) took {
	if l := u.by; l != nil {
		_, here := h.launchers[l.peer.ID()]
		switch {
		case !here || !l.runs(r) || l.starts.of(r).pid != 0:
			return settled // where no process runs the leader offers the rank again
		case (time.Since(u.asked) < h.takeUp() || time.Since(l.heard) < h.takeUp()) && !h.halted(l):
			return open
		}
		next := h.freeLauncher(lj, l)
		if next == nil || !next.ready() {
			l.deaf = true
			return open
		}
		h.giveUpOn(lj, l, r, next)
		u.by, u.asked = next, time.Now()
		h.startRank(lj, next, r)
		return begun
	}
	for _, l := range h.launchers {
		if l.hello.Job != lj.job.Name || !l.runs(r) {
			continue
		}
		if lr := lj.ranks[r]; !l.starts.of(r).attached || lr == nil || lr.alive() {
			return settled // on its way already
		}
		if time.Since(u.since) < reapPatience && !h.halted(l) {
			return open // it is about to say that its process ended
		}
	}
	l := h.freeLauncher(lj, nil)
	switch {
	case l == nil:
		return settled
	case !l.ready():
		return allBusy // it is asked for this one once it has begun those before
	}
	u.by, u.asked = l, time.Now()
	h.startRank(lj, l, r)
	return begun
}

// freeLauncher picks a launcher that answers and could start a process; the one that has been here longest of those that may be asked now.
func (h *Host) freeLauncher(lj *localJob, but *launcher) (busy *launcher) {
	for _, id := range slices.Sorted(maps.Keys(h.launchers)) {
		l := h.launchers[id]
		switch {
		case l == but || !l.accepted || l.hello.Job != lj.job.Name || l.free() <= 0 || l.deaf || l.done:
		case !l.ready():
			busy = cmp.Or(busy, l)
		case !h.halted(l):
			return l
		}
	}
	return busy
}

// giveUpOn withdraws a start that a launcher has not taken up. Awake again it finds the start and right after it the stop.
func (h *Host) giveUpOn(lj *localJob, l *launcher, r replica.Rank, next *launcher) {
	l.starts.over(r)
	l.deaf = true
	l.peer.Send(wire.RankHeader{Type: wire.MRunStop, Epoch: lj.job.Epoch}, wire.RunStop{Rank: r, Signal: uint32(syscall.SIGKILL)}.Append(nil)) //nolint:errcheck // a dead peer is Gone
	text := fmt.Sprintf("the launcher of process %d has not started a process for rank %d, and is stopped or hangs: this one is asked", l.peer.PID(), r)
	h.log.RankNote(lj.job, r, "launcher", text)
	next.note(lj.job.Epoch, text)
}

// halted tells whether the launcher is stopped by a signal.
func (h *Host) halted(l *launcher) bool {
	return h.processes.Halted(l.peer.PID(), l.peer.StartTime())
}
