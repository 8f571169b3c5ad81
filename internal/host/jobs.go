package host

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// jobs is the table of the jobs that the leader has named. What happens is routed to its job here, by number, name or session.
type jobs struct {
	all map[replica.JobID]*job.Job
	at  *job.At
}

// of is the job of that number; nil: it is not known.
func (t *jobs) of(id replica.JobID) *job.Job { return t.all[id] }

// named is the job of that name that has not ended; nil: there is none.
func (t *jobs) named(name string) *job.Job {
	for _, j := range t.all {
		if j.Job.Name == name && j.Job.Phase != replica.Ended {
			return j
		}
	}
	return nil
}

// byPeer is the job, and the rank of it, that a session speaks for; nil: it speaks for none.
func (t *jobs) byPeer(p session.Peer) (*job.Job, replica.Rank) {
	for _, j := range t.all {
		if r, ok := j.Of(p); ok {
			return j, r
		}
	}
	return nil, 0
}

// follow takes over the record of a job, which may be new here.
func (t *jobs) follow(record *replica.Job) {
	j := t.all[record.ID]
	if j == nil {
		j = job.New(record, t.at)
		t.all[record.ID] = j
	}
	j.Follow(record)
}

// drop is the one place where a job goes. Nothing of it lies here any more.
func (t *jobs) drop(id replica.JobID) {
	t.all[id].Launched().Close()
	delete(t.all, id)
}

// ended is the end of what ran beside the host for a job.
type ended struct {
	job    replica.JobID
	ending job.Ending
}

// jobNode is the host as its jobs see it.
type jobNode struct{ *Host }

func (h jobNode) Now() time.Time { return time.Now() }

func (h jobNode) Up() time.Duration { return time.Since(h.began) }

func (h jobNode) Self() replica.Node { return h.self }

func (h jobNode) Linked() bool { return h.link != nil }

func (h jobNode) Unlinked() (since time.Time, remedy string) { return h.unlinked, h.remedy() }

func (h jobNode) Send(msg any) { h.send(msg) }

func (h jobNode) Going() bool { return h.leaving.goes }

func (h jobNode) Notify(to act.Room, ev act.Event) { h.notify(to, ev) }

func (h jobNode) Processes() job.Processes { return h.processes }

func (h jobNode) Watch(pid int, start uint64) error { return h.sessions.Watch(pid, start) }

func (h jobNode) FenceDesk(id replica.JobID, e replica.Epoch) { h.desk.Fence(id, e) }

func (h jobNode) EndPushes(id replica.JobID) { h.mover.EndPushes(id) }

func (h jobNode) Beside(id replica.JobID, work func(context.Context) job.Ending) {
	h.spawn(func(ctx context.Context) Event {
		if e := work(ctx); e != nil {
			return ended{id, e}
		}
		return nil
	})
}

func (h jobNode) Recheck(id replica.JobID, c holding.Copy, lost replica.Held) {
	h.spawn(func(ctx context.Context) Event {
		h.fetches.Verify(ctx, id, c.Arena, c.Place, lost)
		return nil
	})
}

// jobMemory is the memory of the host as its jobs see it.
type jobMemory struct{ *Host }

func (h jobMemory) Hold(a *shm.Arena, key string) *holding.Arena {
	ref := holding.New(a, key, h.unmap)
	h.custody.Put(key, ref.File())
	return ref
}

func (h jobMemory) Reserve(a *holding.Arena) { h.reserve(a) }

func (h jobMemory) Forget(a *holding.Arena) { h.forget(a) }

func (h jobMemory) Save() { h.saveArenas() }

func (h jobMemory) After(id replica.JobID, e job.Ending) {
	h.custody.After(func() { h.Post(ended{id, e}) })
}
