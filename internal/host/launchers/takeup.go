package launchers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// reapPatience is how long a launcher has to report the end of a rank's process, which is known, before another one is asked for the next.
const reapPatience = time.Second

// takeUp is how long a launcher that was asked to start processes may report nothing. One that is stopped reports nothing for ever.
func (p *Pool) takeUp() time.Duration { return max(reapPatience, p.cfg.Timing.Claim/3) }

// Offered starts processes for ranks that lost their own, as the leader asks.
func (v View) Offered(o control.Offers, now time.Time) {
	job, untakens := v.job.Record(), v.job.Launched().untaken
	for r, expect := range o.In(len(job.Ranks)) {
		if u := untakens[r]; job.Ranks[r].Incarnation == expect && (u == nil || u.expect != expect) {
			untakens[r] = &untaken{expect: expect, since: now}
		}
	}
	v.TakeOffers(now)
}

// TakeOffers finds launchers for the offers that none has taken up, and reports to the leader which were asked: all of them at once.
func (v View) TakeOffers(now time.Time) {
	news, busy := false, false
	job, untakens := v.job.Record(), v.job.Launched().untaken
	for _, r := range slices.Sorted(maps.Keys(untakens)) {
		u := untakens[r]
		if int(r) >= len(job.Ranks) || job.Ranks[r].Incarnation != u.expect || job.Phase == replica.Open || job.Phase == replica.Ended {
			delete(untakens, r)
			continue
		}
		if busy && u.by == nil {
			continue // nobody may be asked for this one either
		}
		switch v.takeOffer(r, u, now) {
		case settled:
			delete(untakens, r)
		case begun:
			news = true
		case allBusy:
			busy = true
		case open:
		}
	}
	if news {
		v.pool.owner.Report(job.ID)
	}
}

// took is what became of an offer.
type took uint8

const (
	open    took = iota
	settled      // a process runs for the rank, its launcher reported that none does, or nobody could start one
	begun        // a launcher was asked just now
	allBusy      // those that could start one have enough to start
)

func (v View) takeOffer(r replica.Rank, u *untaken, now time.Time) took {
	p, job := v.pool, v.job.Record()
	if u.by != nil {
		return v.followUp(r, u, now)
	}
	for _, l := range p.all {
		if l.hello.Job != job.Name || !l.runs(r) {
			continue
		}
		if rank, known := v.job.Rank(r); !l.starts.of(r).attached || !known || rank.Alive {
			return settled // on its way already
		}
		if now.Sub(u.since) < reapPatience && !p.halted(l) {
			return open // it is about to report that its process ended
		}
	}
	l := v.freeLauncher(nil)
	switch {
	case l == nil:
		return settled
	case !l.ready():
		return allBusy // it is asked for this one once it has begun those before
	}
	u.by, u.asked = l, now
	l.start(job, r, now)
	return begun
}

// followUp is what became of an offer that a launcher was asked to take up.
func (v View) followUp(r replica.Rank, u *untaken, now time.Time) took {
	p, l := v.pool, u.by
	_, here := p.all[l.peer.ID()]
	switch {
	case !here || !l.runs(r) || l.starts.of(r).pid != 0:
		return settled // where no process runs the leader offers the rank again
	case (now.Sub(u.asked) < p.takeUp() || now.Sub(l.heard) < p.takeUp()) && !p.halted(l):
		return open
	}
	next := v.freeLauncher(l)
	if next == nil || !next.ready() {
		l.deaf = true
		return open
	}
	v.giveUpOn(l, r, next)
	u.by, u.asked = next, now
	next.start(v.job.Record(), r, now)
	return begun
}

// freeLauncher picks a launcher that answers and could start a process; the one that has been here longest of those that may be asked now.
func (v View) freeLauncher(but *launcher) (busy *launcher) {
	p, name := v.pool, v.job.Record().Name
	for _, id := range slices.Sorted(maps.Keys(p.all)) {
		l := p.all[id]
		switch {
		case l == but || !l.accepted || l.hello.Job != name || l.free() <= 0 || l.deaf || l.done:
		case !l.ready():
			busy = cmp.Or(busy, l)
		case !p.halted(l):
			return l
		}
	}
	return busy
}

// giveUpOn withdraws a start that a launcher has not taken up. Awake again it finds the start and right after it the stop.
func (v View) giveUpOn(l *launcher, r replica.Rank, next *launcher) {
	job := v.job.Record()
	l.starts.over(r)
	l.deaf = true
	l.kill(job.Epoch, r)
	text := fmt.Sprintf("the launcher of process %d has not started a process for rank %d, and is stopped or hangs: this one is asked",
		l.peer.PID(), r)
	v.pool.log.RankNote(job, r, "launcher", text)
	next.note(job.Epoch, text)
}

// halted reports whether the launcher is stopped by a signal.
func (p *Pool) halted(l *launcher) bool { return p.owner.Halted(l.peer.PID(), l.peer.StartTime()) }
