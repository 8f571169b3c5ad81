package host

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

const (
	// growsEvery is how often the leader hears how far a shard is, while bytes of it are written: much more often than it gives one up.
	growsEvery = 10 * time.Second
	// writeIdle is how long a durable write may keep a slot from a commit that waits, without moving a byte.
	writeIdle = recovery.WriteIdle
	// lateEvery is how often the leader hears of a write that moves and holds up a commit.
	lateEvery = time.Second
)

// shardWrite is a durable write of one shard, which reads a slot here and so keeps it from being freed. It holds the slot no longer than
// until the last byte is read: what is still to be synced then lies with the kernel. The host owns it; its writer's goroutine reads through it.
type shardWrite struct {
	generation replica.Generation
	readers    []*holding.Reader // that hold the slot, and the frozen area beside it
	bytes      int64             // of the slot's part
	read       atomic.Int64      // of those, by the writer
	moved      atomic.Int64      // all that the writer has read

	// As the host saw it last.
	seen   int64
	seenAt time.Time
	lateAt time.Time // when the leader was told that it holds up a commit
	over   bool      // nothing is held any more
}

// chunks reads chunk i, into dst if it has room.
type chunks = func(i int, dst []byte) ([]byte, error)

// hold takes the readers over.
func (w *shardWrite) hold(part, frozen *holding.Reader) {
	w.readers, w.bytes = []*holding.Reader{part}, int64(part.Manifest().Bytes)
	if frozen != nil {
		w.readers = append(w.readers, frozen)
	}
}

// counting returns what wraps the reads of the writer: they are counted, and say hears of them now and then. own is for the slot's part.
func (w *shardWrite) counting(say func(written uint64)) func(read chunks, own bool) chunks {
	said := time.Now()
	return func(read chunks, own bool) chunks {
		return func(i int, dst []byte) ([]byte, error) {
			if n := w.moved.Load(); n > 0 && time.Since(said) >= growsEvery {
				said = time.Now()
				say(uint64(n))
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

// look takes note of what has moved since, and lets go of the slot once it is read whole.
func (w *shardWrite) look(now time.Time) {
	if n := w.moved.Load(); n != w.seen {
		w.seen, w.seenAt = n, now
	}
	if len(w.readers) > 0 && w.read.Load() >= w.bytes {
		w.end()
	}
}

// holds tells whether the write holds its slot.
func (w *shardWrite) holds() bool { return len(w.readers) > 0 && !w.over }

// idle tells whether the write has moved nothing for long.
func (w *shardWrite) idle(now time.Time) bool { return now.Sub(w.seenAt) >= writeIdle }

// crowds tells whether the write holds the place that a candidate lacks: its arena has no free one, and nothing of the candidate in any.
func (w *shardWrite) crowds(candidate replica.Generation) bool {
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

// end lets go of the slot; the writer's next read fails. A call that hangs in the kernel has bytes of its own: what becomes of its file no
// marker ever names, because the shard is reported as failed or was read whole.
func (w *shardWrite) end() {
	if !w.over {
		w.over = true
		for _, r := range w.readers {
			r.Drop()
		}
	}
}

// close is end on the writer's goroutine.
func (w *shardWrite) close() {
	for _, r := range w.readers {
		r.Close()
	}
}

// shardWrites are the writes of a job by part, those too that have ended: each is begun once.
type shardWrites map[replica.Part]*shardWrite

// endBut ends and forgets all writes but those of a generation: the leader has given theirs up, or they are through.
func (ws shardWrites) endBut(g replica.Generation) {
	for part, w := range ws {
		if w.generation != g {
			w.end()
			delete(ws, part)
		}
	}
}

// hungWrites are the durable writes that were given up since they moved nothing, and have not returned, with when that was. While there are any no
// other is begun: it would hang as well, and each time keep a slot from a commit for writeIdle.
type hungWrites map[*shardWrite]time.Time

func (h *hungWrites) add(w *shardWrite, now time.Time) {
	if *h == nil {
		*h = hungWrites{}
	}
	(*h)[w] = now
}

func (h hungWrites) returned(w *shardWrite) { delete(h, w) }

// complaint says why no write is begun; nil: nothing speaks against one.
func (h hungWrites) complaint(now time.Time) error {
	var first *shardWrite
	for w, at := range h {
		if first == nil || at.Before(h[first]) {
			first = w
		}
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("the write of generation %v was given up %v ago and has not returned: see what ails the file system of durable_dir", first.generation, now.Sub(h[first]).Round(time.Second))
}
