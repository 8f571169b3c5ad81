package admission

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// advance takes a process as far towards its arena as the job's state allows now.
func (g *Gate) advance(p *process, now time.Time) {
	req := p.helloReq
	if p.attach != 0 {
		req = p.attach
	}
	job := g.owner.Named(p.hello.Job)
	v := p.judge(g.owner.Self().Node, g.owner.Informed(), job, g.launchers.Launching(p.hello.Job))
	if v.to == attachedAlready {
		if g.handOutAgain(job, p) {
			return
		}
		v.to = refused
	}
	switch v.to {
	case waits:
	case refused:
		g.refuse(p, req, v.code, v.text)
	case welcomed:
		g.welcome(job.Record(), p)
	case claims:
		g.claimFor(job, p, now)
	case attachedAlready: // see above
	}
}

func (g *Gate) refuse(p *process, req uint32, c int32, text string) {
	g.log.RefusedRank(p.hello.Job, p.hello.Rank, p.peer.PID(), text)
	g.audit.Refused("rank", g.owner.Self().Node, audit.Fields{"job": p.hello.Job, "rank": fmt.Sprint(p.hello.Rank),
		"pid": fmt.Sprint(p.peer.PID()), "refused": text})
	g.launchers.Refused(p.hello.Job, p.hello.Rank, text)
	p.peer.Refuse(req, c, text)
	g.desk.Leave(p.peer)
	if p.attach == 0 {
		delete(g.all, p.peer.ID())
		return
	}
	p.turned, p.attach, p.request, p.granted, p.creating = true, 0, 0, 0, false // it may ask anew: the refusal may not have reached it
}

func (g *Gate) welcome(job *replica.Job, p *process) {
	p.welcomed = true
	g.meet(job, p)
	spec := g.arenas.Spec(job, p.hello.Rank)
	p.peer.Send(wire.RankHeader{Type: wire.MWelcome, Request: p.helloReq}, //nolint:errcheck // a dead peer is Gone
		wire.Welcome{ABI: wire.RankABI, Rank: p.hello.Rank, Cluster: spec.Cluster, Job: job.ID, Era: spec.Era,
			ChunkBytes: spec.ChunkBytes}.Append(nil))
}

// meet lets a process ask the rendezvous.
func (g *Gate) meet(job *replica.Job, p *process) {
	g.desk.Admit(p.peer, desk.Caller{Job: job.ID, Rank: p.hello.Rank, Nonce: p.hello.Nonce})
}

// handOutAgain serves a process that was named the owner of its arena by a daemon that died before it had handed the arena out. The claim
// is granted, and the process asks anew. False: it has the arena, or another one.
func (g *Gate) handOutAgain(job Job, p *process) bool {
	record, rank := job.Record(), p.hello.Rank
	held, _ := job.Held(rank)
	if held.Peer != nil || held.Arena.Step() != 0 || held.Initial != 0 || room.Superseded(record, rank, held.Incarnation) {
		return false
	}
	switch {
	case !p.welcomed:
		g.welcome(record, p)
	case p.attach == 0: // its geometry is on its way
	case !held.Arena.Fits(p.geometry):
		return false
	default:
		delete(g.all, p.peer.ID())
		g.owner.HandOutAgain(job, rank, p.peer, p.attach)
	}
	return true
}
