package mirrors

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Making is a mirror's arena on its way: reserved, then parked. Several may wait for it.
type Making struct {
	job   replica.JobID
	key   replica.Part
	rank  replica.Rank
	kind  replica.PartKind
	of    replica.Digest // its geometry
	arena *holding.Arena // once it is reserved
	err   error          // to be read once done is closed
	done  chan struct{}
	began time.Time
	long  time.Duration
}

// Done is closed once the arena counts, or has failed for the reason that Err then has.
func (mk *Making) Done() <-chan struct{} { return mk.done }
func (mk *Making) Err() error            { return mk.err }

// makingLong is from when on the node whose part waits for an arena of so many bytes hears of a failure, and no "not yet": it would say that for
// ever where the keeper hangs, and no other node would be asked to mirror the part. On a busy machine memory was reserved at 0.7 GB a second;
// 256 MiB are allowed for.
func makingLong(bytes uint64) time.Duration {
	return 10*time.Second + time.Duration(bytes>>28)*time.Second
}

// Late is the error of an arena that has not been made in time; nil: it may still be. Anybody may ask.
func (mk *Making) Late(now time.Time) error {
	if took := now.Sub(mk.began); took > mk.long {
		return fmt.Errorf("mirror of %v: its arena is not made after %v", mk.key, took.Round(time.Second))
	}
	return nil
}

func (mk *Making) end(of *Held, err error) {
	delete(of.making, mk.key)
	mk.err = err
	close(mk.done)
}

// Find returns the arena for a mirrored part, or else what makes it: begun now, unless it is on its way. Step is to follow.
func (r *Room) Find(now time.Time, job *replica.Job, rank replica.Rank, man replica.Manifest) (*holding.Arena, *Making, error) {
	key := man.Part
	if key.Kind == replica.FrozenPart {
		key.Kind = replica.ReplicatedPart // it lies beside the parts that bind it
	}
	held := r.Of(job.ID)
	if a := held.Arena(key); a != nil && a.Header().Geometry[man.Part.Kind] == man.Geometry {
		return a, nil, nil
	}
	if err := admit(job, rank, man); err != nil {
		return nil, nil, err
	}
	if mk := held.making[key]; mk != nil {
		if mk.kind != man.Part.Kind || mk.of != man.Geometry {
			if err := mk.Late(now); err != nil {
				return nil, nil, err
			}
			return nil, nil, fmt.Errorf("mirror of %v: %w: an arena of another geometry is on its way", man.Part, transfer.ErrNotYet)
		}
		return nil, mk, nil
	}
	spec, err := r.owner.Spec(job, rank).MirrorOf(man.Part.Kind, man.Regions)
	if err != nil {
		return nil, nil, fmt.Errorf("mirror of %v: %w", man.Part, err)
	}
	if shm.GeometryDigest(spec.Geometry, man.Part.Kind) != man.Geometry {
		return nil, nil, fmt.Errorf("mirror of %v: the manifest's regions do not make its geometry", man.Part)
	}
	mk := &Making{job: job.ID, key: key, rank: rank, kind: man.Part.Kind, of: man.Geometry, done: make(chan struct{}), began: now, long: makingLong(uint64(spec.Slots) * man.Bytes)}
	held.making[key] = mk
	r.effects = append(r.effects, act.Make{Of: mk, Spec: spec})
	return nil, mk, nil
}

// admit tells whether memory may be taken for a part.
func admit(job *replica.Job, rank replica.Rank, man replica.Manifest) error {
	if job.Phase == replica.Ended {
		return fmt.Errorf("mirror of %v: %w: the job has ended", man.Part, transfer.ErrFenced)
	}
	if man.Part.Kind == replica.FrozenPart {
		return fmt.Errorf("mirror of %v: %w: the replicated part comes first", man.Part, transfer.ErrNotYet)
	}
	if man.Part.Kind == replica.PrivatePart && man.Bytes > room.PrivateCap(job) {
		return fmt.Errorf("private part of rank %d has %d bytes, the cap is %d", rank, man.Bytes, room.PrivateCap(job))
	}
	return room.Fits(job, man)
}

// made takes an arena whose memory is reserved.
func (r *Room) made(ev act.Made) {
	mk, mine := ev.Of.(*Making)
	if !mine {
		return
	}
	held := r.Of(mk.job)
	switch {
	case ev.Err != nil:
		mk.end(held, fmt.Errorf("mirror of %v: %w", mk.key, ev.Err))
	case r.ended(mk.job):
		mk.end(held, fmt.Errorf("mirror of %v: %w: the job has ended", mk.key, transfer.ErrFenced))
		r.effects = append(r.effects, act.Unmap{Arena: ev.Arena})
	default:
		mk.arena = r.owner.Hold(ev.Arena, holding.MirrorKey(mk.job, mk.rank))
		r.effects = append(r.effects, act.Park{Arena: mk.arena, Then: Parked{mk}})
	}
}

// parked puts an arena in its place: it outlives the daemon now.
func (r *Room) parked(mk *Making) {
	held := r.Of(mk.job)
	if r.ended(mk.job) {
		mk.end(held, fmt.Errorf("mirror of %v: %w: the job has ended", mk.key, transfer.ErrFenced))
		r.effects = append(r.effects, act.Forget{Arena: mk.arena})
		return
	}
	old := held.Arena(mk.key)
	held.arenas[mk.key] = room.Mirror{Part: mk.key, Rank: mk.rank, Arena: mk.arena}
	r.effects = append(r.effects, act.Reserve{Arena: mk.arena})
	mk.end(held, nil)
	switch v, _ := r.owner.Job(mk.job); {
	case old == nil:
	case v.Job.Growth != nil:
		r.effects = append(r.effects, act.Retire{Job: mk.job, Arena: old}, act.Save{})
	default:
		r.effects = append(r.effects, act.Forget{Arena: old})
	}
}

func (r *Room) ended(id replica.JobID) bool {
	v, known := r.owner.Job(id)
	return !known || v.Job.Phase == replica.Ended
}
