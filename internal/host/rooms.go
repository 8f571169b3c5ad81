package host

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/hands"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// rooms is the host as its rooms see it.
type rooms struct{ *Host }

// notify has a room learn of something, and does what follows.
func (h *Host) notify(r act.Room, ev act.Event) {
	now := time.Now()
	r.Learn(now, ev)
	h.turn(r, now)
}

// turn does what a room wants done now, and returns in what time it is to have another turn.
func (h *Host) turn(r act.Room, now time.Time) time.Duration {
	for _, e := range r.Step(now) {
		h.do(r, e)
	}
	if at, ok := r.Next(); ok {
		return max(at.Sub(now), busyTick)
	}
	return restTick
}

// turnRooms gives each room its turn.
func (h *Host) turnRooms(now time.Time) time.Duration {
	next := restTick
	for _, r := range [...]act.Room{h.adoption, h.restores, h.mirrors, h.push, h.scrub, h.writer, h.agents} {
		next = min(next, h.turn(r, now))
	}
	check(h)
	return next
}

// Hold makes an arena of the node of its memory.
func (h rooms) Hold(a *shm.Arena, key string) *holding.Arena { return h.hands.Hold(a, key) }

func (h rooms) Self() replica.Holder { return h.self.Holder() }

func (h rooms) Holder(n replica.NodeName) replica.Holder { return h.nodes[n].Holder() }

func (h rooms) Jobs() (jobs []room.JobView) {
	for _, j := range h.jobs.all {
		jobs = append(jobs, j.View())
	}
	return jobs
}

func (h rooms) Job(id replica.JobID) (view room.JobView, known bool) {
	j := h.jobs.of(id)
	if j == nil {
		return view, false
	}
	return j.View(), true
}

func (h rooms) Informed() bool { return h.informed }

func (h rooms) Alive(pid int, start uint64) bool { return h.processes.Alive(pid, start) }

func (h rooms) Halted(pid int, start uint64) bool { return h.processes.Halted(pid, start) }

func (h rooms) Moving(id replica.JobID, g replica.Generation) []mover.Moving {
	return h.hands.Mover.Moving(id, g)
}

func (h rooms) Spec(job *replica.Job, r replica.Rank) shm.Spec {
	return shm.Spec{Cluster: h.cluster, Era: h.era, Job: job.ID, Rank: r, ChunkBytes: room.ChunkBytes(job), Slots: room.Slots(job), Margin: uint64(h.cfg.MemoryMargin)}
}

// served is a fetch's request, to be served on the host's goroutine.
type served struct{ fetch.Request }

func (s served) serve(h *Host) { s.Serve(rooms{h}) }

func (h *Host) fetchAsks(ctx context.Context, r fetch.Request) error {
	if !h.ask(ctx, served{r}) {
		return h.gone(ctx)
	}
	return nil
}

// Nodes are those registered.
func (h rooms) Nodes() map[replica.NodeName]replica.Node { return h.nodes }

// Relays are the nodes that fetch a part of a plan for others.
func (h rooms) Relays(id replica.JobID, p replica.Part, e replica.Epoch) []replica.Holder {
	j := h.jobs.of(id)
	if j == nil {
		return nil
	}
	return slices.Clone(j.Mirrors.Relays(p, e))
}

// Reading is that of a place since the newest fence.
func (h rooms) Reading(id replica.JobID, a *holding.Arena, p shm.Place) fetch.Reading {
	if r := h.restores.Reading(id, a, p); r != nil {
		return r
	}
	return nil // a nil *Reading in an interface would not be nil
}

// Take takes a place of an arena for a part.
func (h rooms) Take(id replica.JobID, a *holding.Arena, m replica.Manifest) (shm.Place, *shm.Staging, error) {
	j := h.jobs.of(id)
	if j == nil {
		return shm.Place{}, nil, fmt.Errorf("%w: job %v is over", transfer.ErrFenced, id)
	}
	return j.TakePlace(a, m)
}

// Spoiled takes down which part is lost with a copy that was found bad here.
func (h rooms) Spoiled(id replica.JobID, lost replica.Held, disk bool) {
	if j := h.jobs.of(id); j != nil {
		j.Spoiled(lost, disk)
	}
}

// GivenUp takes down that a bad copy is gone from its arena.
func (h rooms) GivenUp(id replica.JobID, c holding.Copy) {
	h.notify(h.scrub, scrub.GivenUp{Job: id, Copy: c})
}

// Corrupt passes on which nodes sent bytes that do not hash to their digests.
func (h rooms) Corrupt(c control.CorruptCopy, nodes []replica.NodeName) {
	if j := h.jobs.of(c.Job); j != nil {
		j.Corrupt(c, nodes)
	}
}

// Descriptors is why an arena finds too few descriptors here.
func (h rooms) Descriptors() error {
	if err := want.Descriptor(arenaDescriptors); err != nil {
		return fmt.Errorf("%d descriptors for an arena: %w", arenaDescriptors, err)
	}
	return nil
}

// arenaDescriptors is how many descriptors the way of an arena to its process takes at most: its own, those of what is read meanwhile, and
// duplicates on their way to the keeper and the process.
const arenaDescriptors = 4

// Room is why an arena finds too little memory here.
func (h rooms) Room(spec shm.Spec) error { return launchers.FewerSlots(spec, h.hands.Room(spec)) }

// Lacks is why an arena can't be had here now.
func (h rooms) Lacks(spec shm.Spec) error {
	if err := h.Descriptors(); err != nil {
		return err
	}
	return h.Room(spec)
}

// Coming tells whether a part is on its way into an arena already.
func (h rooms) Coming(a *holding.Arena, part replica.Part, g replica.Generation, root replica.Digest) bool {
	var r holding.Receiving
	r.Add(a, part, g, root)
	return r.Any()
}

// answer passes the end of what a room had done to that room.
func (h *Host) answer(a hands.Answer) {
	if ev, ok := a.Event.(act.Ended); ok {
		if f, ok := ev.Of.(*scrub.Fetch); ok { // what is sealed again is reported first
			j := h.jobs.of(f.Job)
			h.hands.CameBack(f, ev.Err, j != nil)
			if j != nil {
				j.Report()
			}
		}
	}
	h.notify(a.To, a.Event)
}

// regions has the regions of a part hashed, as the leader has ordered.
func (h *Host) regions(o control.RegionsOrder) {
	report := replica.RegionReport{Job: o.Job, Generation: o.Generation, Part: o.Part, Rank: o.Rank, Root: o.Root}
	if j := h.jobs.of(o.Job); j != nil {
		if at, ok := j.Copy(o); ok {
			h.hands.Regions(at, report)
			return
		}
	}
	report.Failed = fmt.Sprintf("%v of generation %v with root %v does not lie in an arena of rank %d here",
		o.Part, o.Generation, o.Root, o.Rank)
	h.send(report)
}

// check holds what a host keeps against what must be true between any two events. In builds that do not check it does nothing.
func check(h *Host) {
	if !invariant.On {
		return
	}
	has := map[*holding.Arena]string{} // what has an arena: two would each free its places
	owns := func(a *holding.Arena, who string) {
		invariant.Holds(a != nil, "%s has no arena", who)
		invariant.Holds(has[a] == "", "arena %s is that of %s, and of %s", a.Key(), has[a], who)
		invariant.Holds(!a.Dropped(), "%s has arena %s, which was given up", who, a.Key())
		has[a] = who
		a.Check()
	}
	for id, j := range h.jobs.all {
		invariant.Holds(j.Job.ID == id, "job %v lies under %v", j.Job.ID, id)
		j.Check()
		j.CheckArenas(owns)
	}
	h.admission.Check()
	h.launchers.Check()
}
