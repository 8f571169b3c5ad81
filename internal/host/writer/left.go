package writer

import (
	"context"
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/replica"
)

// A write whose daemon dies leaves its parts in the spool. What is needed to finish it lies beside them in a note, from before the first byte: the next
// daemon tells the leader of it, and writes the object where a resume asks for it.

// noteOf is what the note of a write says, but for the files.
func (w *Write) noteOf(owner Owner, v room.JobView) *tier.Spooled {
	job := v.Job
	said := said(job, control.MarkerOrder{Lacks: owner.Lacking(job.ID, w.Generation)})
	n := &tier.Spooled{Job: job.Name, ID: job.ID, Owner: job.Owner, Began: job.Began, Cluster: w.Cluster, Node: owner.Self().Node, Generation: w.Generation, Number: w.Number, Epoch: w.Epoch, Object: w.Object, Parts: w.Parts, Said: said}
	for _, s := range job.Writer.Shards {
		n.Roots = append(n.Roots, tier.Rooted{Part: s.Part, Root: s.Root})
	}
	for _, p := range w.pieces {
		if m := p.slot.Manifest(); !m.FrozenRoot.IsZero() {
			n.Frozen = append(n.Frozen, tier.Rooted{Part: replica.Part{Kind: replica.FrozenPart, Index: m.Part.Index}, Root: m.FrozenRoot})
		}
	}
	return n
}

// leaveNote puts the note into the spool; nil: there is none. A write comes through without it.
func (w *Write) leaveNote(ctx context.Context, sp *spool.Spool, lines []line) *spool.Part {
	if w.note == nil || sp == nil {
		return nil
	}
	for _, l := range lines {
		man := l.slot.Manifest()
		file := ""
		if l.copy != nil {
			file = l.copy.into.File()
		}
		if file == "" && man.Bytes > 0 { // it goes with this daemon
			return nil
		}
		if err := tier.AddPiece(w.note, file, man, l.regions); err != nil {
			return nil
		}
	}
	b, err := w.note.Seal()
	if err != nil {
		return nil
	}
	part, err := sp.Note(ctx, spool.Name{Job: w.Job, Generation: w.Generation, Part: w.Parts[0]}, b)
	if err != nil {
		return nil
	}
	return part
}

// LeftBehind lists what the node's spool holds of writes that died with their daemon, and why some of it cannot be used.
func LeftBehind(ctx context.Context, sp *spool.Spool, node replica.NodeName, cluster replica.ClusterID) (list []*tier.Spooled, passed []string) {
	left, err := sp.Left(ctx)
	if err != nil {
		return nil, []string{err.Error()}
	}
	for _, l := range left {
		n, err := noteIn(l)
		switch {
		case err != nil:
		case n.Node != node || n.Cluster != cluster:
			err = fmt.Errorf("it is of node %s, cluster %v", n.Node, n.Cluster)
		default:
			err = whole(ctx, sp, n)
		}
		if err != nil {
			passed = append(passed, fmt.Sprintf("%s: %v", l.File, err))
			continue
		}
		list = append(list, n)
	}
	return list, passed
}

func noteIn(l spool.Left) (*tier.Spooled, error) {
	if l.Err != nil {
		return nil, l.Err
	}
	n, err := tier.ParseSpooled(l.Note)
	if err == nil && len(n.Pieces) == 0 {
		err = fmt.Errorf("it names no files")
	}
	return n, err
}

// whole tells whether every part is there with its size. Whether its bytes are good their reading says.
func whole(ctx context.Context, sp *spool.Spool, n *tier.Spooled) error {
	for i := range n.Pieces {
		_, shut, err := open(ctx, sp, Pick{n, i})
		if err != nil {
			return err
		}
		shut()
	}
	return nil
}

// Pick is a part in the spool, by its place in a note.
type Pick struct {
	Note *tier.Spooled
	At   int
}

// PickOf finds a part of a generation in notes.
func PickOf(left []*tier.Spooled, id replica.JobID, g replica.Generation, p replica.PartRoot) (Pick, bool) {
	for _, n := range left {
		if n.ID != id || n.Generation != g {
			continue
		}
		for i, part := range n.Parts {
			if root, _ := n.Root(part); part == p.Part && root == p.Root {
				return Pick{n, i}, true
			}
		}
	}
	return Pick{}, false
}

// open opens a part of a write that died.
func open(ctx context.Context, sp *spool.Spool, at Pick) (part tier.Part, shut func(), err error) {
	shut = func() {}
	piece := at.Note.Pieces[at.At]
	p, err := at.Note.Packed(at.At)
	if err != nil {
		return part, shut, err
	}
	part = tier.Part{Manifest: p.Manifest, Regions: p.Regions, Read: func(int, []byte) ([]byte, error) { return nil, fmt.Errorf("it has no chunks") }}
	if p.Manifest.Bytes > 0 {
		f, err := sp.OpenLeft(ctx, piece.File, p.Manifest.Bytes)
		if err != nil {
			return part, shut, err
		}
		shut = func() { _ = f.Close() } // it was read
		part.Read = readLeft(ctx, f, piece.File, p.Manifest)
	}
	return part, shut, nil
}

// readLeft reads the chunks of a part, each held against its digest.
func readLeft(ctx context.Context, f *spool.LeftPart, file string, man replica.Manifest) chunks {
	return func(i int, dst []byte) ([]byte, error) {
		off, size := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		if uint64(cap(dst)) < size {
			dst = make([]byte, size)
		}
		b := dst[:size]
		if err := f.ReadAt(ctx, b, off); err != nil {
			return nil, fmt.Errorf("spool %s: %w", file, err)
		}
		if shm.Hash(b) != man.Chunks[i] {
			return nil, fmt.Errorf("spool %s: chunk %d: %w: digest differs", file, i, shm.ErrCorrupt)
		}
		return b, nil
	}
}

// Finish writes an object of parts whose writes died with their daemon, and the frozen part that a group's binds; nil: the store has that.
func Finish(ctx context.Context, to Tier, a tier.Attempt, object string, frozen *Pick, picks []Pick) (replica.Stored, error) {
	var shuts []func()
	defer func() {
		for _, shut := range shuts {
			shut()
		}
	}()
	paced := func(at Pick) (tier.Part, error) {
		p, shut, err := open(ctx, to.Spool, at)
		shuts = append(shuts, shut)
		read := p.Read
		p.Read = func(i int, dst []byte) ([]byte, error) {
			b, err := read(i, dst)
			if err == nil {
				err = to.Rate.wait(ctx, len(b))
			}
			return b, err
		}
		return p, err
	}
	var parts []tier.Part
	for _, at := range picks {
		p, err := paced(at)
		if err != nil {
			return replica.Stored{}, err
		}
		parts = append(parts, p)
	}
	if frozen == nil {
		return to.Store.Write(ctx, a, object, nil, parts...)
	}
	f, err := paced(*frozen)
	if err != nil {
		return replica.Stored{}, err
	}
	return to.Store.Write(ctx, a, object, &f, parts...)
}
