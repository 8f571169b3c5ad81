package admission

import (
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// made is the end of making an arena.
type made struct {
	process *process
	job     replica.JobID
	arena   *shm.Arena
	err     error
}

// parked reports that an arena is with the keeper, and on the list with the process that is to have it: it may be handed out.
type parked struct {
	process *process
	job     replica.JobID
	fresh   bool // made for this process; else its dead predecessor's, and still in its place
}

func (made) event()   {}
func (parked) event() {}

// makeArena passes on the arena of the rank's dead predecessor where it fits, and makes a fresh one beside the owner where not.
func (g *Gate) makeArena(job Job, p *process) {
	record, rank := job.Record(), p.hello.Rank
	if held, is := job.Held(rank); is {
		if held.Arena.Fits(p.geometry) {
			g.park(record.ID, p, held.Arena, false)
			return
		}
		job.Retire(rank)
	}
	for _, ref := range job.View().Retired { // retired since the view of this very claim came before its answer
		of := ref.Spec()
		if !of.Mirror && of.Rank == rank && ref.Fits(p.geometry) && !g.owner.Alive(ref.Process.PID, ref.Process.Start) {
			g.park(record.ID, p, ref, false)
			return
		}
	}
	p.creating = true
	id := record.ID
	g.arenas.Make(id, g.spec(record, p), func(a *shm.Arena, err error) Event { return made{p, id, a, err} })
}

func (g *Gate) made(ev made, now time.Time) {
	p, job := ev.process, g.owner.Known(ev.job)
	p.creating = false
	awaits := g.here(p) && job != nil && p.granted != 0 // else it is gone, or was refused meanwhile
	if ev.err != nil {
		if !awaits {
			return
		}
		g.owner.Send(control.Evidence{Job: ev.job, Fault: replica.Fault{Epoch: job.Record().Epoch, Kind: replica.ProcessDead,
			Rank: p.hello.Rank, Incarnation: p.granted, Detail: ev.err.Error()}})
		p.granted = 0
		if kind := want.Of(ev.err); kind != want.Nothing { // it asks for the rank again once that is free
			g.owner.Short(ev.job, p.hello.Rank, kind, ev.err.Error(), now)
			return
		}
		g.refuse(p, p.attach, wire.CodeSystem, ev.err.Error())
		return
	}
	if !awaits {
		g.arenas.Unmap(ev.arena) // never handed out
		return
	}
	g.park(ev.job, p, g.arenas.Keep(ev.arena, holding.RankKey(ev.job, p.hello.Rank, p.granted)), true)
}

// lacksRoom reports whether this node is short of what a process's arena takes. It waits then, and has claimed nothing: other nodes may be
// asked.
func (g *Gate) lacksRoom(job Job, p *process, now time.Time) bool {
	record := job.Record()
	if !g.owner.MayTry(record.ID, now) {
		return true
	}
	err := g.arenas.Descriptors()
	if err == nil && !inherits(job, p) {
		err = g.arenas.Room(g.spec(record, p))
	}
	if kind := want.Of(err); kind != want.Nothing {
		g.owner.Short(record.ID, p.hello.Rank, kind, err.Error(), now)
		return true
	}
	return false // any other error comes again when the arena is made
}

// inherits reports whether a predecessor's arena lies here that a process can have.
func inherits(job Job, p *process) bool {
	if held, is := job.Held(p.hello.Rank); is && held.Arena.Fits(p.geometry) {
		return true
	}
	return slices.ContainsFunc(job.View().Retired, func(ref *holding.Arena) bool {
		return ref.Spec().Rank == p.hello.Rank && ref.Fits(p.geometry)
	})
}

func (g *Gate) spec(job *replica.Job, p *process) shm.Spec {
	spec := g.arenas.Spec(job, p.hello.Rank)
	spec.Geometry = p.geometry
	return spec
}

// park has the arena of a process put where it outlives the daemon. The list on disk names the process before that has the arena: a daemon
// that starts again must know whom to wait for. A predecessor's arena stays in its place meanwhile, and counts there.
func (g *Gate) park(id replica.JobID, p *process, ref *holding.Arena, fresh bool) {
	p.creating, p.arena = true, ref
	ref.Process = holding.Process{PID: p.peer.PID(), Start: p.peer.StartTime(), Proven: true}
	ref.SetOwner(p.granted, uint64(p.peer.PID()), p.peer.StartTime())
	g.arenas.Park(parked{p, id, fresh})
}

func (g *Gate) parked(ev parked, now time.Time) {
	p, job, ref := ev.process, g.owner.Known(ev.job), ev.process.arena
	p.creating, p.arena = false, nil
	there := job != nil && holdsDead(job, ref)
	awaits := g.here(p) && job != nil && p.granted != 0
	switch {
	case awaits && (ev.fresh || there):
		delete(g.all, p.peer.ID())
		g.owner.HandOut(job, Claimed{p.hello.Rank, p.granted, ref, p.peer, p.attach})
	case ev.fresh:
		g.arenas.Forget(ref) // the process is gone, or was refused
	case awaits && job.Record().Phase != replica.Ended:
		g.makeArena(job, p) // another job's rules gave the predecessor's up
	default:
		g.arenas.Save() // its place is its predecessor's again
		g.Serve(now)
	}
}

// holdsDead reports whether an arena lies here as that of a dead process.
func holdsDead(job Job, ref *holding.Arena) bool {
	held, is := job.Held(ref.Spec().Rank)
	return is && held.Arena == ref && !held.Alive || slices.Contains(job.View().Retired, ref)
}

// Listed is what the list on disk has of processes whose arena is being parked.
func (g *Gate) Listed() (list []holding.Entry) {
	for _, p := range g.all {
		if a := p.arena; a != nil {
			list = append(list, holding.Entry{Key: a.Key(), Job: a.Spec().Job, Rank: p.hello.Rank, PID: p.peer.PID(),
				Start: p.peer.StartTime(), For: p.hello.Job})
		}
	}
	return list
}

// Arenas are those that are being parked.
func (g *Gate) Arenas() (list []*holding.Arena) {
	for _, p := range g.all {
		if p.arena != nil {
			list = append(list, p.arena)
		}
	}
	return list
}
