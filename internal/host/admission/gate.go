package admission

import (
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Gate is the processes of a node that are on their way to their arena. It belongs to one goroutine.
type Gate struct {
	owner     Owner
	arenas    Arenas
	launchers Launchers
	desk      Desk
	log       Log
	audit     Audit
	cfg       *config.Config
	all       map[uint64]*process // by session peer
	claims    map[uint64]*process // under way, by request; those of processes that are gone too
	paced     bool                // some have to wait for the pace of their user
}

// New returns a gate at which nobody is. Changes of the configuration count at once.
func New(owner Owner, arenas Arenas, launchers Launchers, d Desk, log Log, audit Audit, cfg *config.Config) *Gate {
	return &Gate{owner: owner, arenas: arenas, launchers: launchers, desk: d, log: log, audit: audit, cfg: cfg,
		all: map[uint64]*process{}, claims: map[uint64]*process{}}
}

// Hello takes in a process that asks for a rank.
func (g *Gate) Hello(ev session.Hello, now time.Time) {
	p := &process{peer: ev.Peer, hello: ev.Hello, helloReq: ev.Header.Request}
	g.all[ev.Peer.ID()] = p
	g.advance(p, now)
}

// Attach takes the regions that a process registers, with which it asks for its arena.
func (g *Gate) Attach(ev session.Attach, now time.Time) {
	p := g.all[ev.Peer.ID()]
	if job, rank := g.owner.RankOf(ev.Peer); p == nil && job != nil {
		g.Answer(job, rank, ev.Header.Request, now) // the answer came when the rank had stopped waiting for it
		return
	}
	if p == nil || !p.welcomed {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeState, "attach before hello was answered")
		return
	}
	if !ev.Again { // a rank waits in slices, and asks in each
		geometry, err := Registered(ev.Regions)
		if err != nil {
			g.refuse(p, ev.Header.Request, wire.CodeInvalid, err.Error())
			return
		}
		p.geometry = geometry
	}
	p.attach = ev.Header.Request
	if job := g.owner.Named(p.hello.Job); p.turned && job != nil {
		p.turned = false
		g.meet(job.Record(), p)
	}
	if ev.Group != replica.NoGroup {
		p.hello.Group = ev.Group
	}
	g.advance(p, now)
}

// Gone forgets a process whose session is lost; false: it is none of these.
func (g *Gate) Gone(peer uint64) bool {
	_, was := g.all[peer]
	delete(g.all, peer)
	return was
}

// Empty reports whether nobody asks for a rank here.
func (g *Gate) Empty() bool { return len(g.all)+len(g.claims) == 0 }

// Serve tries again for all that wait, after anything that may have cleared the way.
func (g *Gate) Serve(now time.Time) {
	for _, p := range g.all {
		g.advance(p, now)
	}
}

// Tick serves those that had to wait for the pace of their user, or whose claim has an unknown outcome.
func (g *Gate) Tick(now time.Time) {
	if g.paced {
		g.paced = false
		g.Serve(now)
	}
}

// Retry has those try again that wait here for something that this node was short of.
func (g *Gate) Retry(now time.Time) {
	for over := range g.launchers.Retries(now) {
		if over {
			g.owner.Report()
		}
		g.Serve(now)
	}
}

// Handle takes the end of something that the owner did for the gate.
func (g *Gate) Handle(ev Event, now time.Time) {
	switch ev := ev.(type) {
	case made:
		g.made(ev, now)
	case parked:
		g.parked(ev, now)
	case stateRead:
		g.stateRead(ev, now)
	}
}

// JobOf names the job of which a process wants a rank; false: the session is that of no such process.
func (g *Gate) JobOf(peer uint64) (job string, ok bool) {
	p := g.all[peer]
	if p == nil {
		return "", false
	}
	return p.hello.Job, true
}

// Claiming reports whether a process of this node is on its way from a claim of the rank to its arena.
func (g *Gate) Claiming(job string, r replica.Rank) bool {
	for _, p := range g.all {
		if p.wants(job, r) && (p.request != 0 || p.creating) {
			return true
		}
	}
	return false
}

// Expects reports whether a process for the rank waits for an answer. One that was welcomed and has not asked to attach yet builds its
// model.
func (g *Gate) Expects(job string, r replica.Rank) bool {
	for _, p := range g.all {
		if p.wants(job, r) && (p.attach != 0 || !p.welcomed) {
			return true
		}
	}
	return false
}
