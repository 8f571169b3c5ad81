package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// growsEvery is how often the leader hears how far a shard is, while bytes of it are written, and of what ails its store.
const growsEvery = 10 * time.Second

// Store writes an object where it lasts: *tier.Tier.
type Store interface {
	Write(ctx context.Context, a tier.Attempt, object string, frozen *tier.Part, parts ...tier.Part) (replica.Stored, error)
}

// Write has one object written, beside the owner: the part of a group, or the private parts of this node's ranks. It reads a slot for each part, and so
// keeps it from being freed, until the part's last byte is copied into the spool. Without one it does until the store has read the last byte: what is
// still to be synced then lies with the kernel. The Room owns it; Run reads through it.
type Write struct {
	tier.Attempt
	Object string
	Parts  []replica.Part
	Info   replica.Stored // what the store has, once it has ended well

	note   *tier.Spooled // for who finishes the write, should this daemon die; nil: nobody could
	kept   []*spool.Part // note and parts of an object that is written, until the others of the generation are
	laid   atomic.Int32  // whether note and parts are whole in the spool, and stay there
	pieces []*piece
	store  string       // names it, for people
	moved  atomic.Int64 // all that Run has read, from memory and from the spool, and all that the store has taken
	road   atomic.Pointer[road]
	stop   chan struct{} // closed at the end
	turn   chan struct{} // closed once the store may be given something

	// As the Room saw it last.
	seen    mark
	told    mark      // of what was seen the leader knows
	lateAt  time.Time // when the leader was told that it holds up a commit
	lack    lack
	begun   bool // by Run
	turned  bool // it is its turn
	over    bool // it was ended
	endedAt time.Time
	given   bool // it was given up, and reported as failed
}

// mark is how much of a write was done, and when.
type mark struct {
	n  int64 // bytes
	at time.Time
}

// piece is a part of a Write in its slot.
type piece struct {
	slot    *holding.Reader
	frozen  *holding.Reader // of the part beside it; nil: there is none
	regions []replica.Region
	bytes   int64
	read    atomic.Int64 // of those, by Run
	freed   bool         // the slot is held no more, as the Room knows it
}

// hold holds what one part is written from.
func (w *Write) hold(now time.Time, owner Owner, v room.JobView, s replica.Shard) error {
	at, ok := v.Find(nil, s.Part, w.Generation, s.Root)
	if !ok {
		return fmt.Errorf("%v of generation %v is not held here any more", s.Part, w.Generation)
	}
	slot, err := owner.Open(v.Job, at)
	if err != nil {
		w.end(now)
		return err
	}
	p := &piece{slot: slot, regions: at.Arena.Geometry().Regions, bytes: int64(slot.Manifest().Bytes)}
	w.pieces = append(w.pieces, p)
	if at.Info.FrozenRoot.IsZero() || s.Part.Kind == replica.FrozenPart {
		return nil
	}
	f, ok := v.Find(at.Arena, replica.Part{Kind: replica.FrozenPart, Index: s.Part.Index}, w.Generation, at.Info.FrozenRoot)
	if !ok {
		err = fmt.Errorf("the frozen part of %v is not held here", s.Part)
	} else {
		p.frozen, err = owner.Open(v.Job, f)
	}
	if err != nil {
		w.end(now)
	}
	return err
}

// Tier is what writes go to, and how.
type Tier struct {
	Store Store
	Spool *spool.Spool // nil: each slot is held until the store has its part
	Rate  *Rate        // at which the store is given what is in the spool; nil: no bound
}

// Run writes the object. ails hears of requests to the store that do not succeed. Beside the owner; Returned is to follow.
func (w *Write) Run(ctx context.Context, to Tier, ails func(what string)) (replica.Stored, error) {
	defer w.close()
	ctx, cancel := w.lasting(ctx)
	defer cancel(nil)
	ctx = tier.Watching(ctx, tier.Watch{Moved: func(bytes int) { w.moved.Add(int64(bytes)) }, Troubled: ails})
	lines, err := w.lines(ctx, to.Spool)
	var spooled []*spool.Part
	for _, l := range lines {
		if l.copy != nil {
			spooled = append(spooled, l.copy.into)
		}
	}
	defer func() { w.unspool(ctx, spooled) }()
	if err != nil {
		return replica.Stored{}, err
	}
	note := w.leaveNote(ctx, to.Spool, lines)
	if note != nil {
		spooled = append(spooled, note)
	}
	var copied sync.WaitGroup
	copied.Go(func() {
		if w.spools(ctx, lines) == nil && note != nil {
			w.laid.CompareAndSwap(inPart, inSpool)
		}
	})
	var frozen *tier.Part
	parts := make([]tier.Part, len(lines))
	for i, l := range lines {
		parts[i] = tier.Part{Manifest: l.slot.Manifest(), Regions: l.regions, Read: w.counting(l.reads(ctx, to.Rate), l.counted())}
		if f := l.frozen; f != nil {
			frozen = &tier.Part{Manifest: f.Manifest(), Regions: l.regions, Read: w.counting(f.ReadChunk, nil)}
		}
	}
	info, err := w.give(ctx, to.Store, frozen, parts)
	cancel(nil)
	copied.Wait()
	if err == nil && note != nil { // another node's object may be on its way yet: if all die now, this one is written again with it
		w.kept, spooled = spooled, nil
	}
	return info, err
}

// give gives the store the object, once it is its turn. It is copied into the spool before.
func (w *Write) give(ctx context.Context, to Store, frozen *tier.Part, parts []tier.Part) (replica.Stored, error) {
	select {
	case <-w.turn:
		return to.Write(ctx, w.Attempt, w.Object, frozen, parts...)
	case <-ctx.Done():
		return replica.Stored{}, context.Cause(ctx)
	}
}

// turns lets the object be given to the store.
func (w *Write) turns(now time.Time) {
	if !w.turned {
		w.turned, w.seen.at = true, now
		close(w.turn)
	}
}

// Kept tells whether the object still lies in the spool after Run. Release waits until the durable write is over, and removes it there; at the
// daemon's end it stays.
func (w *Write) Kept() bool { return len(w.kept) > 0 }

// Release is to follow a Run whose object is kept.
func (w *Write) Release(ctx context.Context) {
	select {
	case <-w.stop:
		w.unspool(ctx, w.kept)
	case <-ctx.Done():
	}
}

// unspool removes what the write had in the spool, unless a daemon that ends counts on it.
func (w *Write) unspool(ctx context.Context, parts []*spool.Part) {
	if len(parts) > 0 && w.removes() {
		remove(ctx, parts)
	}
}

// remove removes what a write had in the spool. What its disk does not remove in time a later start does; the object is what the store says.
func remove(ctx context.Context, parts []*spool.Part) {
	closing, end := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
	defer end()
	for _, p := range parts {
		_ = p.Close(closing)
	}
}

// line is a piece on its way to the store.
type line struct {
	*piece
	copy *copying // through the spool; nil: the store reads its slot
}

// lines finds room in the spool for each piece.
func (w *Write) lines(ctx context.Context, sp *spool.Spool) (lines []line, err error) {
	for i, p := range w.pieces {
		man := p.slot.Manifest()
		part, err := w.room(ctx, sp, w.Parts[i], man)
		if err != nil {
			return lines, err
		}
		l := line{piece: p}
		if part != nil {
			l.copy = newCopying(man, part)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// spools copies one piece after the other into the spool.
func (w *Write) spools(ctx context.Context, lines []line) (failed error) {
	for _, l := range lines {
		switch {
		case l.copy == nil:
		case failed != nil:
			l.copy.tell(0, failed)
		default:
			if failed = l.copy.run(ctx, w.counted(l.piece)); failed == nil {
				l.slot.Close() // the slot is free
			}
		}
	}
	return failed
}

// reads gives the store the chunks of a piece.
func (l line) reads(ctx context.Context, rate *Rate) chunks {
	if l.copy == nil {
		return l.slot.ReadChunk
	}
	return func(i int, dst []byte) ([]byte, error) {
		b, err := l.copy.read(ctx, i, dst)
		if err == nil {
			err = rate.wait(ctx, len(b))
		}
		return b, err
	}
}

// counted is the piece whose bytes the store's reads are; nil: its copy's are.
func (l line) counted() *piece {
	if l.copy == nil {
		return l.piece
	}
	return nil
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

// closePatience is how long the end of a write waits for the spool's disk to remove what was there.
const closePatience = time.Second

// room is where the part lies between memory and the store; nil: nowhere.
func (w *Write) room(ctx context.Context, sp *spool.Spool, p replica.Part, man replica.Manifest) (*spool.Part, error) {
	if sp == nil || man.Bytes == 0 {
		return nil, nil
	}
	part, err := sp.Create(ctx, spool.Name{Job: w.Job, Generation: w.Generation, Part: p}, man.Bytes)
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
	s := control.ShardReport{Job: w.Job, Generation: w.Generation, Number: w.Number, Part: w.Parts[0], Also: w.Parts[1:]}
	add(&s)
	return s
}

// chunks reads chunk i, into dst if it has room.
type chunks = func(i int, dst []byte) ([]byte, error)

// counting wraps the reads of the writer. of is whose slot is read; nil: no slot is.
func (w *Write) counting(read chunks, of *piece) chunks {
	return func(i int, dst []byte) ([]byte, error) {
		if err := w.stopped(); err != nil {
			return nil, err
		}
		b, err := read(i, dst)
		w.moved.Add(int64(len(b)))
		if of != nil {
			of.read.Add(int64(len(b)))
		}
		return b, err
	}
}

// counted wraps the reads of who copies a piece into the spool.
func (w *Write) counted(p *piece) chunks {
	return func(i int, dst []byte) ([]byte, error) {
		b, err := p.slot.ReadChunk(i, dst)
		w.moved.Add(int64(len(b)))
		p.read.Add(int64(len(b)))
		return b, err
	}
}

// stopped ends reads once the write was ended.
func (w *Write) stopped() error {
	select {
	case <-w.stop:
		return fmt.Errorf("%v of generation %v: %w", w.Parts[0], w.Generation, holding.ErrDropped)
	default:
		return nil
	}
}

// look takes note of what has moved since, and lets go of the slots that are read whole.
func (w *Write) look(now time.Time) {
	if n := w.moved.Load(); n != w.seen.n || !w.turned { // who waits for others is not silent
		w.seen = mark{n, now}
	}
	for _, p := range w.pieces {
		if p.read.Load() >= p.bytes {
			p.free()
		}
	}
}

// holds tells whether the write holds a slot.
func (w *Write) holds() bool {
	return slices.ContainsFunc(w.pieces, func(p *piece) bool { return !p.freed })
}

// free lets go of the slot. What else is held is of the arena's one frozen area, which nothing waits for.
func (p *piece) free() {
	if !p.freed {
		p.freed = true
		p.slot.Drop()
	}
}

// progress is how many bytes of the slots were read, of how many.
func (w *Write) progress() (read, of int64) {
	for _, p := range w.pieces {
		read, of = read+p.read.Load(), of+p.bytes
	}
	return read, of
}

// crowds tells whether the write holds the place that a candidate lacks: its arena has no free one, and nothing of the candidate in any.
func (w *Write) crowds(candidate replica.Generation) bool {
	return slices.ContainsFunc(w.pieces, func(p *piece) bool { return !p.freed && p.crowds(candidate) })
}

func (p *piece) crowds(candidate replica.Generation) bool {
	of := p.slot.Copy()
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

// end lets go of all that is held; Run's next read fails. A call that hangs in the kernel has bytes of its own: what becomes of its object no
// commit ever names, because it is reported as failed or was read whole.
func (w *Write) end(now time.Time) {
	if w.over {
		return
	}
	w.over, w.endedAt = true, now
	close(w.stop)
	for _, p := range w.pieces {
		p.freed = true
		p.slot.Drop()
		if p.frozen != nil {
			p.frozen.Drop()
		}
	}
}

// close is end on Run's goroutine.
func (w *Write) close() {
	for _, p := range w.pieces {
		p.slot.Close()
		if p.frozen != nil {
			p.frozen.Close()
		}
	}
}
