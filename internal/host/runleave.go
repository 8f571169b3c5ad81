package host

import (
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// launcherLeaves takes the word of a launcher that was told to end: its ranks end the step that they are in first, and have it committed. The
// launcher itself bounds how long it waits for that.
func (h *Host) launcherLeaves(p session.Peer) {
	l := h.launchers[p.ID()]
	if l == nil {
		return
	}
	l.leaving = true
	if lj := h.jobNamed(l.hello.Job); lj != nil && lj.job.Phase == replica.Open {
		l.leaveAt = lock.LastDue(lj.job, h.lastOf(lj, l))
	}
	h.letLaunchersGo()
}

// lastOf is the step that is to be committed before a launcher's ranks are told to end; 0: none of them trains. Where other nodes have ranks it is
// one step further than these are in: ranks are within one step of each other, all launchers may be told to end at once, and a rank that ends
// with its own step takes the step along that another one is in.
func (h *Host) lastOf(lj *localJob, l *launcher) replica.Step {
	in := h.stepOf(lj, l)
	if in > 0 && len(l.starts.ranks()) < int(lj.job.Layout.World) {
		in++
	}
	return in
}

// stepOf is the newest step that the ranks of a launcher are in; 0: none of them trains.
func (h *Host) stepOf(lj *localJob, l *launcher) (in replica.Step) {
	for _, r := range l.starts.ranks() {
		lr := lj.ranks[r]
		if lr == nil || lr.life != training {
			continue
		}
		word := lr.arena.Step()
		at := word.Step()
		if word.Phase() == replica.Idle {
			at++
		}
		if word.Epoch() == lj.job.Epoch {
			in = max(in, at)
		}
	}
	return in
}

// letLaunchersGo tells the launchers that wait for a step that they may end: it is committed, or nothing will be soon.
func (h *Host) letLaunchersGo() {
	for _, l := range h.launchers {
		if !l.leaving {
			continue
		}
		lj := h.jobNamed(l.hello.Job)
		if lj != nil && lj.job.Phase == replica.Open && lj.job.Position.Step < l.leaveAt && h.stepOf(lj, l) > 0 {
			continue
		}
		l.leaving = false
		l.peer.Send(wire.RankHeader{Type: wire.MRunLeave}, nil) //nolint:errcheck // a dead peer is Gone
	}
}
