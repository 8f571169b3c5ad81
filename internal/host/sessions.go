package host

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/adoption"
	"github.com/replicad/replicad/internal/host/agents"
	"github.com/replicad/replicad/internal/session"
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
	case session.Resumed:
		h.jobs.resumed(ev)
	case session.From:
		h.jobs.origin(ev)
	case session.Recipe:
		h.jobs.recipe(ev)
	case session.Grow:
		h.heard(ev.Peer, ev)
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
		for _, j := range h.jobs.all { // one process may hold several ranks, of several jobs
			j.Exited(ev.PID, ev.StartTime)
		}
	}
}

// heard takes what a rank says to its job; where that is not known yet it waits with the arena.
func (h *Host) heard(p session.Peer, ev session.Event) {
	for _, j := range h.jobs.all {
		if j.Hears(p, ev) {
			return
		}
	}
	h.notify(h.adoption, adoption.Sent{Peer: p, Event: ev})
}

// peerGone is a lost session: of a live process until its exit is seen.
func (h *Host) peerGone(p session.Peer) {
	h.desk.Leave(p)
	if h.admission.Gone(p.ID()) {
		return
	}
	if name, was := h.launchers.Gone(p.ID()); was {
		h.notify(h.agents, act.Gone{Peer: p})
		for _, j := range h.jobs.all {
			if j.Job.Name == name {
				j.Report()
			}
		}
		return
	}
	h.notify(h.adoption, act.Gone{Peer: p})
	h.notify(h.growing, act.Gone{Peer: p})
	for _, j := range h.jobs.all {
		j.Lost(p)
	}
}

// turnedAway writes down what the socket refused before there was a rank or a launcher. Each user has lines of their own: one user's attempts
// hide nobody else's.
func (h *Host) turnedAway(ev session.TurnedAway) {
	h.log.TurnedAway(ev.UID, ev.PID, ev.Others, ev.Why)
	h.audit.Refused(fmt.Sprintf("socket, user %d", ev.UID), h.self.Name, audit.Fields{"user": fmt.Sprint(ev.UID), "pid": fmt.Sprint(ev.PID), "refused": ev.Why, "others": fmt.Sprint(ev.Others)})
}
