package host

import (
	"cmp"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/adoption"
	"github.com/replicad/replicad/internal/host/agents"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

func (h *Host) handleSession(ev session.Event) {
	switch ev := ev.(type) {
	case session.Hello:
		h.launchers.Connected(ev.Hello.Job, ev.Hello.Rank)
		if ev.File != nil {
			h.reattach(ev)
			return
		}
		h.notify(h.adoption, adoption.Asked{Peer: ev.Peer, Job: ev.Hello.Job, Rank: ev.Hello.Rank})
		h.admission.Hello(ev, time.Now())
	case session.Attach:
		h.admission.Attach(ev, time.Now())
	case session.Grow:
		h.heard(ev.Peer, ev)
	case session.Resumed:
		h.resumed(ev)
	case session.From:
		h.origin(ev)
	case session.Recipe:
		h.recipe(ev)
	case session.Sealed:
		h.heard(ev.Peer, ev)
	case session.Stopped:
		h.heard(ev.Peer, ev)
	case session.Loaded:
		h.heard(ev.Peer, ev)
	case session.Fail:
		h.heard(ev.Peer, ev)
	case session.Reject:
		h.heard(ev.Peer, ev)
	case session.Unloadable:
		h.heard(ev.Peer, ev)
	case session.Pause:
		h.heard(ev.Peer, ev)
	case session.Ending:
		h.heard(ev.Peer, ev)
	case session.Lacks:
		h.heard(ev.Peer, ev)
	case session.Said:
		h.heard(ev.Peer, ev)
	case session.Leave:
		h.heard(ev.Peer, ev)
	case session.KV:
		h.desk.Ask(ev.Peer, ev.Header, ev.Op, ev.KV)
	case session.Scope:
		h.desk.AskScope(ev.Peer, ev.Header)
	case session.RunHello, session.RunExited, session.RunRunning, session.RunLeaving, session.Short:
		h.launchers.Handle(ev, time.Now())
	case session.RunAgent:
		if id, ok := h.launchers.JobOf(ev.Peer.ID()); ok { // an agent speaks through a launcher that has a job
			h.notify(h.agents, agents.Said{Job: id, Peer: ev.Peer.ID(), Agent: ev.Agent})
		}
	case session.Gone:
		h.peerGone(ev.Peer)
	case session.TurnedAway:
		h.turnedAway(ev)
	case session.Exited:
		for _, lj := range h.jobs {
			for _, lr := range lj.ranks {
				if lr.pid == ev.PID && lr.start == ev.StartTime { // one process may hold several ranks, of several jobs
					h.rankDied(lj, lr)
				}
			}
		}
	}
}

// heard takes what a rank says to its job; where that is not known yet it waits with the arena.
func (h *Host) heard(p session.Peer, ev session.Event) {
	if lj, lr := h.rankOf(p); lr != nil {
		h.rankSays(lj, lr, ev)
		return
	}
	h.notify(h.adoption, adoption.Sent{Peer: p, Event: ev})
}

func (h *Host) rankSays(lj *localJob, lr *localRank, ev session.Event) {
	switch ev := ev.(type) {
	case session.Sealed:
		h.sealed(lj, lr, shm.Place{Kind: shm.PlaceKind(ev.Sealed.Kind), Index: int(ev.Sealed.Index)})
	case session.Grow:
		h.grows(lj, lr, ev)
	case session.Stopped:
		if h.strayed(lj, lr, ev.Live) {
			return
		}
		if !lr.stopped() {
			lr.stoppedAt = time.Now()
		}
		lr.does(stops)
		if lj.job.Phase == replica.Open && lr.loaded == lj.job.Epoch {
			lr.gone = lj.job.Epoch // it was let go, by this daemon or the one before: it is not to be let go once more, but waits for the fault
		}
		lr.ending = 0 // it has come back: who said that it ends was a hook that the program called, for example
		lr.arena.Joined(lr.halfDone)
		lr.halfDone = nil
		lr.leaveTo = 0 // a fault before all have left brings it back
		lr.ordered = orderKey{}
		h.reconcile(lj)
	case session.Loaded:
		h.loaded(lj, lr, ev)
	case session.Fail:
		h.failed(lj, lr, ev)
	case session.Reject:
		lr.rejected = ev.Header.Epoch
		h.send(control.Rejected{Job: lj.job.ID, Epoch: ev.Header.Epoch, Rank: lr.rank, Incarnation: lr.incarnation, Why: ev.Text})
	case session.Unloadable:
		h.send(control.Evidence{Job: lj.job.ID, Fault: replica.Fault{Epoch: ev.Header.Epoch, Kind: replica.BadDigest, Rank: lr.rank, Incarnation: lr.incarnation, Detail: "load: " + ev.Text}})
	case session.Pause:
		h.paused(lj, lr, ev.Most)
		if ev.Header.Request != 0 {
			ev.Peer.Send(wire.RankHeader{Type: wire.MPaused, Request: ev.Header.Request, Epoch: lj.job.Epoch, Incarnation: lr.incarnation}, nil) //nolint:errcheck // a dead peer is Gone
		}
	case session.Ending:
		lr.ending = millis(ev.Most) // in an open epoch the limits of a hang hold as they are: its peers wait for it
		h.report(lj)
	case session.Lacks:
		if lj.lacks.Say(lr.rank, lr.incarnation, ev.Text, lr.arena.Step().Generation()) {
			h.log.RankNote(lj.job, lr.rank, "lacks", cmp.Or(ev.Text, "nothing any more"))
			h.report(lj)
		}
	case session.Said:
		lj.said.Say(lr.rank, lr.incarnation, ev.Remarks)
		h.saySaid(lj)
	case session.Leave:
		if lr.left() && lj.job.Phase == replica.Ended {
			lr.ordered = orderKey{} // a rank waits in slices, and asks in each: the answer came between two of them
		}
		lr.does(leaves)
		lr.leaveTo = ev.Header.Request
		h.reconcile(lj)
	}
}

// peerGone is a lost session: of a live process until its exit is seen.
func (h *Host) peerGone(p session.Peer) {
	h.desk.Leave(p)
	if h.admission.Gone(p.ID()) {
		return
	}
	if name, was := h.launchers.Gone(p.ID()); was {
		h.notify(h.agents, act.Gone{Peer: p})
		for _, lj := range h.jobs {
			if lj.job.Name == name {
				h.report(lj)
			}
		}
		return
	}
	h.notify(h.adoption, act.Gone{Peer: p})
	h.notify(h.growing, act.Gone{Peer: p})
	if lj, lr := h.rankOf(p); lr != nil {
		lr.peer = nil
		h.report(lj)
	}
}

// failed passes an exception on to the leader and the launchers.
func (h *Host) failed(lj *localJob, lr *localRank, ev session.Fail) {
	fault := replica.Fault{Epoch: ev.Header.Epoch, Kind: replica.Exception, Rank: lr.rank, Incarnation: lr.incarnation, Detail: ev.Text}
	h.send(control.Evidence{Job: lj.job.ID, Fault: fault})
	word := lr.arena.Step()
	step := word.Step()
	if word.Phase() == replica.Idle {
		step++ // it is on its way to the next one
	}
	h.launchers.Of(lj).Failed(lr.rank, ev.Header.Epoch, step, ev.Text)
}

func (h *Host) rankOf(p session.Peer) (*localJob, *localRank) {
	for _, lj := range h.jobs {
		for _, lr := range lj.ranks {
			if lr.peer == p {
				return lj, lr
			}
		}
	}
	return nil, nil
}

func (h *Host) jobNamed(name string) *localJob {
	for _, lj := range h.jobs {
		if lj.job.Name == name && lj.job.Phase != replica.Ended {
			return lj
		}
	}
	return nil
}

// turnedAway writes down what the socket refused before there was a rank or a launcher. Each user has lines of their own: one user's attempts
// hide nobody else's.
func (h *Host) turnedAway(ev session.TurnedAway) {
	h.log.TurnedAway(ev.UID, ev.PID, ev.Others, ev.Why)
	h.audit.Refused(fmt.Sprintf("socket, user %d", ev.UID), h.self.Name, audit.Fields{"user": fmt.Sprint(ev.UID), "pid": fmt.Sprint(ev.PID), "refused": ev.Why, "others": fmt.Sprint(ev.Others)})
}
