package host

import (
	"time"

	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// rooms is the host as its rooms see it.
type rooms struct{ *Host }

// learn has a room learn of something, and does what follows.
func learn[Event, Effect any](r room.Room[Event, Effect], ev Event, do func(Effect)) {
	now := time.Now()
	r.Learn(now, ev)
	turn(r, now, do)
}

// turn does what a room wants done now, and says in what time the room is to be asked again.
func turn[Event, Effect any](r room.Room[Event, Effect], now time.Time, do func(Effect)) time.Duration {
	for _, e := range r.Step(now) {
		do(e)
	}
	if at, ok := r.Next(); ok {
		return max(at.Sub(now), busyTick)
	}
	return idleTick
}

// turnRooms gives each room its turn.
func (h *Host) turnRooms(now time.Time) time.Duration {
	return min(turn(h.adoption, now, h.doAdopt), turn(h.restores, now, h.doRestore), turn(h.mirrors, now, h.doMirror), turn(h.push, now, h.doPush), turn(h.scrubber.room, now, h.doScrub), turn(h.writer, now, h.doWrite), turn(h.agents, now, h.doAgents))
}

func (h rooms) Self() replica.Holder { return h.holder() }

func (h rooms) Holder(n replica.NodeName) replica.Holder { return h.nodes[n].Holder() }

func (h rooms) Jobs() (jobs []room.JobView) {
	for _, lj := range h.jobs {
		jobs = append(jobs, lj.view())
	}
	return jobs
}

func (h rooms) Job(id replica.JobID) (view room.JobView, known bool) {
	lj := h.jobs[id]
	if lj == nil {
		return view, false
	}
	return lj.view(), true
}

func (h rooms) Informed() bool { return h.informed }

func (h rooms) Alive(pid int, start uint64) bool { return h.processes.Alive(pid, start) }

func (h rooms) Halted(pid int, start uint64) bool { return h.processes.Halted(pid, start) }

func (h rooms) Moving(id replica.JobID, g replica.Generation) []mover.Moving {
	return h.mover.Moving(id, g)
}

func (h rooms) Spec(job *replica.Job, r replica.Rank) shm.Spec {
	return shm.Spec{Cluster: h.cluster, Era: h.era, Job: job.ID, Rank: r, ChunkBytes: room.ChunkBytes(job), Slots: room.Slots(job), Margin: uint64(h.cfg.MemoryMargin)}
}
