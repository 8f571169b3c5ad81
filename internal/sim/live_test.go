package sim

import (
	"context"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// watcher is the oracle of liveness. While nothing stands in the job's way (able), a recovery ends and a step is committed within a bound of
// virtual time, which follows the rules' own times and the sizes, and whoever is waited for is named long before.
type watcher struct {
	s     *script
	since time.Time    // of the last disturbance, or step committed
	step  replica.Step // committed then
	phase replica.JobPhase
	epoch replica.Epoch
	moved time.Time // when phase or epoch changed last
	named bool      // who is waited for in it was asked

	begun   replica.Step  // the furthest that any rank has begun
	begunAt time.Time     // when
	longest time.Duration // between two such of the epoch: a hang is judged by it
}

const (
	watchEvery = 500 * time.Millisecond
	nameWithin = 25 * time.Second
)

// disturbed has all bounds begin anew.
func (l *watcher) disturbed() { l.since = time.Now() }

// recovers is how long a recovery may take: what the rules wait for, one after another, and each part twice to each node.
func (l *watcher) recovers() time.Duration {
	t := timing()
	return 2*(t.Start+t.Claim+t.Ack+t.ResumeGrace+t.DaemonGrace) + t.Settle + l.parts()
}

// loads is how long a plan may take while all processes are there and none is stopped: their parts' way, and the mirrors' grace.
func (l *watcher) loads() time.Duration {
	return timing().ResumeGrace + 10*time.Second + time.Duration(2*l.s.w.world)*l.s.w.takes
}

// commits is how long a commit may take: until a hang is judged, then some candidates, and their parts.
func (l *watcher) commits() time.Duration {
	w := l.s.w
	return max(timing().HangFirst, time.Duration(timing().HangFactor)*l.longest) + 20*time.Second + time.Duration(6*max(w.cadence, 1))*(w.pass+100*time.Millisecond) + l.parts()
}

func (l *watcher) parts() time.Duration {
	w := l.s.w
	return time.Duration(4*int(w.world)*w.hosts) * w.takes
}

// able tells whether a quorum and one holder of each part are up and hear each other, and every rank has a place.
func (l *watcher) able() bool {
	s := l.s
	seats, up := uint32(0), 0
	for _, n := range s.w.names {
		m := s.w.machines[n]
		is, _ := m.life()
		switch {
		case !is:
			continue
		case m.running() == nil:
			return false
		}
		up++
		seats += uint32(m.capacity)
	}
	return up >= 2 && seats >= s.w.world && 2*s.voters() > len(s.w.raft.voters) && len(s.hurt) == 0 && !s.w.net.torn() && s.spared("")
}

// look fails the episode once something takes too long.
func (l *watcher) look() {
	now, j := time.Now(), l.s.w.now()
	if j != nil && (j.Phase != l.phase || j.Epoch != l.epoch) {
		l.phase, l.epoch, l.moved, l.named = j.Phase, j.Epoch, now, false
		l.longest, l.begunAt = 0, now
	}
	if begun := l.s.w.furthest(); begun != l.begun {
		l.longest, l.begunAt, l.begun = max(l.longest, now.Sub(l.begunAt)), now, begun
	}
	if !l.able() || j != nil && (j.Phase == replica.Ended || j.Position.Step > l.step) {
		l.since = now
		if j != nil {
			l.step = j.Position.Step
		}
		return
	}
	stands, all := now.Sub(later(l.since, l.moved)), now.Sub(l.since)
	bound, what := l.recovers(), "recovers"
	switch {
	case l.phase == replica.Open:
		bound, what = l.commits(), "commits"
	case l.phase == replica.Planned && l.s.w.ready():
		bound, what = l.loads(), "loads"
	}
	if stands > nameWithin && !l.named {
		l.named = true
		if l.waits() == "" && l.phase == l.s.w.now().Phase {
			l.s.w.failf("P6: the job has been %v for %v with nothing in its way, and status names nobody who is waited for", l.phase, stands)
			return
		}
	}
	if stands > bound || all > l.recovers()+l.commits() {
		l.s.w.failf("P6: nothing is in the way of the job, which is %v in epoch %d, and it %s nothing within %v (%v since the last step or disturbance); committed step %d; waiting: %s", l.phase, l.epoch, what, bound, all, l.step, l.waits())
	}
}

// waits is what the leader's status says of who is waited for; "?": nobody answers.
func (l *watcher) waits() string {
	d := l.s.w.leading()
	if d == nil {
		return "?"
	}
	ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
	defer cancel()
	reply, ok := d.host.Ask(ctx, 5*time.Second, func(id uint64) any { return control.StatusRequest{ID: id} })
	said, ok2 := reply.(control.StatusReply)
	if !ok || !ok2 {
		return "?"
	}
	for _, j := range said.Status.Jobs {
		if j.Phase != replica.Ended.String() {
			return strings.Join(j.Waiting, "; ")
		}
	}
	return "?"
}

// leading is the daemon that leads; nil: none does.
func (w *world) leading() *daemon {
	n, _ := w.raft.leads()
	if n == "" {
		return nil
	}
	return w.machines[n].running()
}
