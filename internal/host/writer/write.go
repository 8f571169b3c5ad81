package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/replica"
)

// growsEvery is how often the leader hears how far a shard is, while bytes of it are written: much more often than it gives one up.
const growsEvery = 10 * time.Second

// Store writes an object where it lasts: *tier.Tier.
type Store interface {
	Write(ctx context.Context, a tier.Attempt, object string, frozen *tier.Part, parts ...tier.Part) (replica.Stored, error)
}

// Write has one shard written, beside the owner. It reads a slot here and so keeps it from being freed, until the last byte is copied into the spool.
// Without one it does until the store has read the last byte: what is still to be synced then lies with the kernel. The Room owns it; Run reads
// through it.
type Write struct {
	tier.Attempt
	Part replica.Part

	readers []*holding.Reader // that hold the slot, and the frozen area beside it
	regions []replica.Region
	bytes   int64        // of the slot's part
	read    atomic.Int64 // of those, by Run
	moved   atomic.Int64 // all that Run has read, from memory and from the spool
	road    atomic.Pointer[road]
	stop    chan struct{} // closed at the end

	// As the Room saw it last.
	seen    int64
	seenAt  time.Time
	lateAt  time.Time // when the leader was told that it holds up a commit
	lack    lack
	begun   bool // by Run
	freed   bool // the slot is held no more
	over    bool // it was ended
	endedAt time.Time
	given   bool // it was given up, and reported as failed
}

// hold holds what the shard is written from.
func (w *Write) hold(now time.Time, owner Owner, v room.JobView, s replica.Shard) error {
	at, ok := v.Find(nil, s.Part, w.Generation, s.Root)
	if !ok {
		return fmt.Errorf("%v of generation %v is not held here any more", s.Part, w.Generation)
	}
	copies := []holding.Copy{at}
	if !at.Info.FrozenRoot.IsZero() {
		f, ok := v.Find(at.Arena, replica.Part{Kind: replica.FrozenPart, Index: s.Part.Index}, w.Generation, at.Info.FrozenRoot)
		if !ok {
			return fmt.Errorf("the frozen part of %v is not held here", s.Part)
		}
		copies = append(copies, f)
	}
	for _, c := range copies {
		r, err := owner.Open(v.Job, c)
		if err != nil {
			w.end(now)
			return err
		}
		w.readers = append(w.readers, r)
	}
	w.regions, w.bytes = at.Arena.Geometry().Regions, int64(w.readers[0].Manifest().Bytes)
	return nil
}

// Tier is what writes go to, and how.
type Tier struct {
	Store Store
	Spool *spool.Spool // nil: each slot is held until the store has its part
	Rate  *Rate        // at which the store is given what is in the spool; nil: no bound
}

// Run writes the shard, and says now and then how many bytes the store has taken. Beside the owner; Returned is to follow.
func (w *Write) Run(ctx context.Context, to Tier, grew func(bytes uint64)) (replica.Stored, error) {
	defer w.close()
	ctx, cancel := w.lasting(ctx)
	defer cancel(nil)
	sh := w.shard(to.Store, w.counting(grew))
	part, err := w.room(ctx, to.Spool, sh.man)
	switch {
	case err != nil:
		return replica.Stored{}, err
	case part == nil:
		return sh.write(ctx, sh.counting(w.readers[0].ReadChunk, true))
	}
	c := newCopying(sh.man, part)
	var copied sync.WaitGroup
	copied.Go(func() {
		if c.run(ctx, w.counted(w.readers[0].ReadChunk)) == nil {
			w.readers[0].Close() // the slot is free
		}
	})
	info, err := sh.write(ctx, sh.counting(func(i int, dst []byte) ([]byte, error) {
		b, err := c.read(ctx, i, dst)
		if err == nil {
			err = to.Rate.wait(ctx, len(b))
		}
		return b, err
	}, false))
	cancel(nil)
	copied.Wait()
	closing, end := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
	defer end()
	_ = part.Close(closing) // what its disk does not remove goes at the next start; the shard is what the store says
	return info, err
}

// lasting is a context that ends with the write.
func (w *Write) lasting(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-w.stop:
			cancel(holding.ErrDropped)
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// shard is what the store is to write.
type shard struct {
	store    Store
	of       tier.Attempt
	man      replica.Manifest
	regions  []replica.Region
	frozen   *tier.Part
	counting func(read chunks, own bool) chunks
}

func (w *Write) shard(store Store, counting func(read chunks, own bool) chunks) shard {
	s := shard{store: store, of: w.Attempt, man: w.readers[0].Manifest(), regions: w.regions, counting: counting}
	if len(w.readers) > 1 {
		f := w.readers[1]
		s.frozen = &tier.Part{Manifest: f.Manifest(), Regions: w.regions, Read: counting(f.ReadChunk, false)}
	}
	return s
}

func (s shard) write(ctx context.Context, read chunks) (replica.Stored, error) {
	return s.store.Write(ctx, s.of, tier.ObjectOf(s.man.Part), s.frozen, tier.Part{Manifest: s.man, Regions: s.regions, Read: read})
}

// closePatience is how long the end of a write waits for the spool's disk to remove what was there.
const closePatience = time.Second

// room is where the part lies between memory and the store; nil: nowhere.
func (w *Write) room(ctx context.Context, sp *spool.Spool, man replica.Manifest) (*spool.Part, error) {
	if sp == nil || man.Bytes == 0 {
		return nil, nil
	}
	part, err := sp.Create(ctx, spool.Name{Job: w.Job, Generation: w.Generation, Part: w.Part}, man.Bytes)
	switch {
	case errors.Is(err, spool.ErrNone):
		w.road.Store(&road{why: err})
		return nil, nil
	case err != nil:
		return nil, err
	}
	w.road.Store(&road{through: part.Where()})
	return part, nil
}

// road is how a part comes to the store: through the spool, or from its slot, and why.
type road struct {
	through string
	why     error
}

// report is what the leader is told of the write.
func (w *Write) report(add func(*control.ShardReport)) control.ShardReport {
	s := control.ShardReport{Job: w.Job, Generation: w.Generation, Number: w.Number, Part: w.Part}
	add(&s)
	return s
}

// chunks reads chunk i, into dst if it has room.
type chunks = func(i int, dst []byte) ([]byte, error)

// counting returns what wraps the reads of the writer: they are counted, and grew hears of them now and then. own is for the slot's part.
func (w *Write) counting(grew func(bytes uint64)) func(read chunks, own bool) chunks {
	said := time.Now()
	return func(read chunks, own bool) chunks {
		return func(i int, dst []byte) ([]byte, error) {
			if n := w.moved.Load(); n > 0 && time.Since(said) >= growsEvery {
				said = time.Now()
				grew(uint64(n))
			}
			if err := w.stopped(); err != nil {
				return nil, err
			}
			b, err := read(i, dst)
			w.moved.Add(int64(len(b)))
			if own {
				w.read.Add(int64(len(b)))
			}
			return b, err
		}
	}
}

// counted wraps the reads of who copies into the spool.
func (w *Write) counted(read chunks) chunks {
	return func(i int, dst []byte) ([]byte, error) {
		b, err := read(i, dst)
		w.moved.Add(int64(len(b)))
		w.read.Add(int64(len(b)))
		return b, err
	}
}

// stopped ends reads once the write was ended.
func (w *Write) stopped() error {
	select {
	case <-w.stop:
		return fmt.Errorf("%v of generation %v: %w", w.Part, w.Generation, holding.ErrDropped)
	default:
		return nil
	}
}

// look takes note of what has moved since, and lets go of the slot once it is read whole.
func (w *Write) look(now time.Time) {
	if n := w.moved.Load(); n != w.seen {
		w.seen, w.seenAt = n, now
	}
	if len(w.readers) > 0 && w.read.Load() >= w.bytes {
		w.free()
	}
}

// holds tells whether the write holds its slot.
func (w *Write) holds() bool { return len(w.readers) > 0 && !w.freed }

// free lets go of the slot. What else is held is of the arena's one frozen area, which nothing waits for.
func (w *Write) free() {
	if !w.freed {
		w.freed = true
		w.readers[0].Drop()
	}
}

// crowds tells whether the write holds the place that a candidate lacks: its arena has no free one, and nothing of the candidate in any.
func (w *Write) crowds(candidate replica.Generation) bool {
	of := w.readers[0].Copy()
	for _, p := range of.Arena.Places() {
		if p.Kind != of.Place.Kind {
			continue
		}
		if of.Arena.Word(p).State() != replica.SlotSealed {
			return false // it is free, or something is on its way into it
		}
		if info, err := of.Arena.Info(p); err != nil || info.Generation == candidate {
			return false
		}
	}
	return true
}

// end lets go of all that is held; Run's next read fails. A call that hangs in the kernel has bytes of its own: what becomes of its file no
// marker ever names, because the shard is reported as failed or was read whole.
func (w *Write) end(now time.Time) {
	if w.over {
		return
	}
	w.over, w.freed, w.endedAt = true, true, now
	close(w.stop)
	for _, r := range w.readers {
		r.Drop()
	}
}

// close is end on Run's goroutine.
func (w *Write) close() {
	for _, r := range w.readers {
		r.Close()
	}
}
