package node

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

func (m *member) handleSession(ev session.Event) {
	switch ev := ev.(type) {
	case session.Hello:
		if ev.File != nil {
			m.reattach(ev)
			return
		}
		a := &attaching{peer: ev.Peer, hello: ev.Hello, helloReq: ev.Header.Request}
		m.attaching[ev.Peer.ID()] = a
		m.advance(a)
	case session.Attach:
		a := m.attaching[ev.Peer.ID()]
		if lj, lr := m.rankOf(ev.Peer); a == nil && lr != nil {
			m.answerAttach(lj, lr, ev.Header.Request) // the answer came when the rank had stopped waiting for it
			return
		}
		if a == nil || !a.welcomed {
			ev.Peer.Refuse(ev.Header.Request, wire.CodeState, "attach before hello was answered")
			return
		}
		g, err := registered(ev.Regions)
		if err != nil {
			m.refuse(a, ev.Header.Request, wire.CodeInvalid, err.Error())
			return
		}
		a.geometry, a.attach = g, ev.Header.Request
		if ev.Group != replica.NoGroup {
			a.hello.Group = ev.Group
		}
		m.advance(a)
	case session.Sealed:
		m.heard(ev.Peer, ev)
	case session.Stopped:
		m.heard(ev.Peer, ev)
	case session.Loaded:
		m.heard(ev.Peer, ev)
	case session.Fail:
		m.heard(ev.Peer, ev)
	case session.Reject:
		m.heard(ev.Peer, ev)
	case session.Unloadable:
		m.heard(ev.Peer, ev)
	case session.Pause:
		m.heard(ev.Peer, ev)
	case session.Leave:
		m.heard(ev.Peer, ev)
	case session.KV:
		m.kv(ev)
	case session.Scope:
		m.scope(ev)
	case session.RunHello:
		m.runHello(ev)
	case session.RunExited:
		m.runExited(ev)
	case session.RunRunning:
		m.runRunning(ev.Peer, ev.RunExited.Rank, ev.RunExited.PID)
	case session.Gone:
		m.peerGone(ev.Peer)
	case session.Exited:
		for _, lj := range m.jobs {
			for _, lr := range lj.ranks {
				if lr.pid == ev.PID && lr.start == ev.StartTime { // one process may hold several ranks, of several jobs
					m.rankDied(lj, lr)
				}
			}
		}
	}
}

// heard takes what a rank says to its job; where that is not known yet it waits with the arena.
func (m *member) heard(p *session.Peer, ev session.Event) {
	if lj, lr := m.rankOf(p); lr != nil {
		m.rankSays(lj, lr, ev)
		return
	}
	for _, ref := range m.orphans {
		if ref.peer == p {
			ref.keepSaid(ev)
			return
		}
	}
}

func (m *member) rankSays(lj *localJob, lr *localRank, ev session.Event) {
	switch ev := ev.(type) {
	case session.Sealed:
		m.sealed(lj, lr, shm.Place{Kind: shm.PlaceKind(ev.Sealed.Kind), Index: int(ev.Sealed.Index)})
	case session.Stopped:
		if !lr.stopped {
			lr.stopped, lr.stoppedAt = true, time.Now()
		}
		if lj.job.Phase == replica.Open && lr.loaded == lj.job.Epoch {
			lr.gone = lj.job.Epoch // it was let go, by this daemon or the one before: it is not to be let go once more, but waits for the fault
		}
		m.freeTorn(lr)
		lr.left, lr.leaveTo = false, 0 // a fault before all have left brings it back
		lr.ordered = orderKey{}
		m.reconcile(lj)
	case session.Loaded:
		m.loaded(lj, lr, ev)
	case session.Fail:
		m.failed(lj, lr, ev)
	case session.Reject:
		lr.rejected = ev.Header.Epoch
		m.send(control.Rejected{Job: lj.job.ID, Epoch: ev.Header.Epoch, Rank: lr.rank, Incarnation: lr.incarnation, Why: ev.Text})
	case session.Unloadable:
		m.send(control.Evidence{Job: lj.job.ID, Fault: replica.Fault{Epoch: ev.Header.Epoch, Kind: replica.BadDigest, Rank: lr.rank, Incarnation: lr.incarnation, Detail: "load: " + ev.Text}})
	case session.Pause:
		m.paused(lj, lr, ev.Most)
		if ev.Header.Request != 0 {
			ev.Peer.Send(wire.RankHeader{Type: wire.MPaused, Request: ev.Header.Request, Epoch: lj.job.Epoch, Incarnation: lr.incarnation}, nil) //nolint:errcheck // a dead peer is Gone
		}
	case session.Leave:
		if lr.left && lj.job.Phase == replica.Ended {
			lr.ordered = orderKey{} // a rank waits in slices, and asks in each: the answer came between two of them
		}
		lr.left, lr.leaveTo = true, ev.Header.Request
		m.reconcile(lj)
	}
}

// peerGone is a lost session: of a live process until its exit is seen.
func (m *member) peerGone(p *session.Peer) {
	m.kvGone(p)
	if a := m.attaching[p.ID()]; a != nil {
		delete(m.attaching, p.ID())
		delete(m.claims, a.request)
		return
	}
	if l := m.launchers[p.ID()]; l != nil {
		m.launcherGone(l)
		return
	}
	for _, ref := range m.orphans {
		if ref.peer == p {
			ref.peer = nil
		}
	}
	if lj, lr := m.rankOf(p); lr != nil {
		lr.peer = nil
		m.report(lj)
	}
}

func (m *member) rankOf(p *session.Peer) (*localJob, *localRank) {
	for _, lj := range m.jobs {
		for _, lr := range lj.ranks {
			if lr.peer == p {
				return lj, lr
			}
		}
	}
	return nil, nil
}

func (m *member) jobNamed(name string) *localJob {
	for _, lj := range m.jobs {
		if lj.job.Name == name && lj.job.Phase != replica.Ended {
			return lj
		}
	}
	return nil
}
