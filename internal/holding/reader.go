package holding

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Reader reads a copy for a transfer or the durable writer. Its place is held until Close, or until its owner drops it; a read behind that
// fails, at the latest once something else lies in the place. Several goroutines may read.
type Reader struct {
	of       Copy
	manifest replica.Manifest
	release  func(*Arena, shm.Place)
	closed   atomic.Bool
}

// Open opens a copy for reading, as a part of the job. release has the arena's owner release a place: Close, which may come from elsewhere,
// calls it.
func (c Copy) Open(job *replica.Job, release func(*Arena, shm.Place)) (*Reader, error) {
	man, err := c.Arena.Manifest(c.Place, c.Held.Part)
	if err != nil {
		return nil, err
	}
	man.Lineage, man.Condemned = job.Lineage, job.Condemned
	man.Regions = c.Arena.Geometry().Of(c.Held.Part.Kind)
	c.Arena.Hold(c.Place)
	return &Reader{of: c, manifest: man, release: release}, nil
}

// ErrDropped ends a read whose place its owner needs.
var ErrDropped = errors.New("the place is needed for something else")

// Copy is what is read.
func (r *Reader) Copy() Copy { return r.of }

// Manifest describes what is read.
func (r *Reader) Manifest() replica.Manifest { return r.manifest }

// ReadChunk copies chunk i out, into dst if it has room.
func (r *Reader) ReadChunk(i int, dst []byte) ([]byte, error) {
	if r.closed.Load() {
		return nil, fmt.Errorf("chunk %d of %v: %w", i, r.of.Held.Part, ErrDropped)
	}
	return r.of.Arena.ReadChunk(r.of.Place, r.of.Info.Count, i, dst)
}

// Drop is Close on the owner's goroutine, which must not wait for its own queue.
func (r *Reader) Drop() {
	if r.closed.CompareAndSwap(false, true) {
		r.of.Arena.Release(r.of.Place)
	}
}

// Close lets go of the place.
func (r *Reader) Close() {
	if r.closed.CompareAndSwap(false, true) {
		r.release(r.of.Arena, r.of.Place)
	}
}

// Bound is the copy, and the frozen part that its root binds where that lies beside it.
func (c Copy) Bound() []Copy {
	list := []Copy{c}
	if f := c.frozen(); f != nil {
		list = append(list, Copy{Arena: c.Arena, Place: shm.Place{Kind: shm.Frozen}, Info: *f})
	}
	return list
}

// RegionDigests hashes each region of a copy by itself, in order of registration. Its place is held by the caller. Beside the owner.
func (c Copy) RegionDigests() ([]replica.RegionDigest, error) {
	return c.Arena.RegionDigests(c.Place, c.Info.Count)
}
