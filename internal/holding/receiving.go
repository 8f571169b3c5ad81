package holding

import (
	"fmt"

	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Receiving reads a part that is on its way here, into one or more arenas at once. What it can't read any more it refuses; nothing is held.
type Receiving struct{ into []*shm.Staging }

// Add looks for a part on its way into an arena, as Find does among those that are here. Its owner calls it.
func (r *Receiving) Add(a *Arena, part replica.Part, g replica.Generation, root replica.Digest) {
	for _, s := range a.staged {
		if m := s.Manifest(); m.Part == part && m.Root == root && (part.Kind == replica.FrozenPart || m.Generation == g) {
			r.into = append(r.into, s)
		}
	}
}

// Any tells whether the part is on its way at all.
func (r *Receiving) Any() bool { return len(r.into) > 0 }

// Manifest describes the part.
func (r *Receiving) Manifest() replica.Manifest { return r.into[0].Manifest() }

// Has tells whether chunk i has come.
func (r *Receiving) Has(i int) bool {
	for _, s := range r.into {
		if s.Have(i) {
			return true
		}
	}
	return false
}

// ReadChunk copies chunk i out, into dst if it has room.
func (r *Receiving) ReadChunk(i int, dst []byte) (b []byte, err error) {
	err = fmt.Errorf("chunk %d has not come", i)
	for _, s := range r.into {
		if !s.Have(i) {
			continue
		}
		if b, err = s.ReadChunk(i, dst); err == nil {
			return b, nil
		}
	}
	return nil, err
}

// Close does nothing.
func (r *Receiving) Close() {}
