package host

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
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

// ended reports whether none is left that has not.
func (t *jobs) ended() bool {
	for _, j := range t.all {
		if j.Job.Phase != replica.Ended {
			return false
		}
	}
	return true
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

// training are the jobs whose ranks train here.
func (t *jobs) training() (list []manners.Job) {
	for id, j := range t.all {
		if step, ok := j.Trains(); ok {
			list = append(list, manners.Job{ID: id, Step: step})
		}
	}
	return list
}

// ofProcess is the job of a process here, which may be on its way to its rank still. r is nil then.
func (t *jobs) ofProcess(p session.Peer) (j *job.Job, r *replica.Rank) {
	if j, of := t.byPeer(p); j != nil {
		return j, &of
	}
	if name, is := t.at.Admission.JobOf(p.ID()); is {
		j = t.named(name)
	}
	return j, nil
}

// origin answers a process with what its job began with, as JSON; an empty text: with the program's own state.
func (t *jobs) origin(ev session.From) {
	j, r := t.ofProcess(ev.Peer)
	if j == nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "the job is not known here yet")
		return
	}
	text, known := j.Origin(r)
	if !known {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "not all ranks have named their groups yet")
		return
	}
	head := wire.RankHeader{Type: wire.MFromIs, Request: ev.Header.Request, Epoch: j.Job.Epoch}
	ev.Peer.Send(head, text) //nolint:errcheck // a dead peer is Gone
}

// recipe answers a process with how it gets the regions that its job has, a piece at a time. While a growth is under way nobody knows that.
func (t *jobs) recipe(ev session.Recipe) {
	j, _ := t.ofProcess(ev.Peer)
	if j == nil || j.Job.Growth != nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "the job is not known here yet, or grows at this moment")
		return
	}
	all := j.Job.Recipe
	from := min(int(ev.Offset), len(all))
	piece := wire.Piece{Offset: uint32(from), Total: uint32(len(all)), Bytes: all[from:min(from+wire.MaxPiece, len(all))]}
	head := wire.RankHeader{Type: wire.MRecipeIs, Request: ev.Header.Request, Epoch: j.Job.Epoch}
	ev.Peer.Send(head, piece.Append(nil)) //nolint:errcheck // a dead peer is Gone
}

// resumed answers a rank with the durable generation that its job goes on from, as launchers print it.
func (t *jobs) resumed(ev session.Resumed) {
	text := ""
	if j, _ := t.byPeer(ev.Peer); j != nil && j.Job.Plan != nil {
		text = j.Job.Plan.Resumed
	}
	head := wire.RankHeader{Type: wire.MResumedIs, Request: ev.Header.Request}
	ev.Peer.Send(head, []byte(replica.Cut(text, wire.MaxRefusedText))) //nolint:errcheck // a dead peer is Gone
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

func (h jobNode) EndPushes(id replica.JobID) { h.hands.Mover.EndPushes(id) }

func (h jobNode) Beside(id replica.JobID, work func(context.Context) job.Ending) {
	h.spawn(func(ctx context.Context) Event {
		if e := work(ctx); e != nil {
			return ended{id, e}
		}
		return nil
	})
}

func (h jobNode) Recheck(id replica.JobID, c holding.Copy, lost replica.Held) {
	h.hands.Recheck(id, c, lost)
}

// jobMemory is the memory of the host as its jobs see it.
type jobMemory struct{ *Host }

func (h jobMemory) Hold(a *shm.Arena, key string) *holding.Arena {
	return h.hands.Hold(a, key)
}

func (h jobMemory) Keep(a *holding.Arena) { h.hands.Custody.Put(a.Key(), a.File()) }

func (h jobMemory) Reserve(a *holding.Arena) { h.hands.Reserve(a) }

func (h jobMemory) Forget(a *holding.Arena) { h.forget(a) }

func (h jobMemory) Save() { h.saveArenas() }

func (h jobMemory) After(id replica.JobID, e job.Ending) {
	h.hands.Custody.After(func() { h.Post(ended{id, e}) })
}
