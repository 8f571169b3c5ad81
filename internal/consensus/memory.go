package consensus

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/replicad/replicad/internal/franchise"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Memory outlives the daemon, and not the log's disk: the keeper holds it. A log that is put back from a copy is older than it says.
type Memory interface {
	io.ReaderAt
	io.WriterAt
}

// MemoryBytes is the size of a Memory: two places, of which the newer whole one counts, so that a write that is cut short leaves the other.
const (
	MemoryBytes = 2 * memoryPlace
	memoryPlace = 2048
	memoryHead  = 4 // how long the frame is
)

// remembered is what a Memory holds.
type remembered struct {
	Write   uint64                              `cbor:"1,keyasint"` // counts writes
	Node    replica.NodeName                    `cbor:"2,keyasint"`
	Cluster replica.ClusterID                   `cbor:"3,keyasint"`
	Log     franchise.Mark                      `cbor:"4,keyasint"` // as it is on disk, once it is
	Seen    map[replica.NodeName]franchise.Mark `cbor:"5,keyasint"` // the furthest that others were seen to go
}

// recall reads what a memory holds of this node; false: nothing.
func recall(m Memory, node replica.NodeName, cluster replica.ClusterID) (best remembered, ok bool) {
	if m == nil {
		return best, false
	}
	for place := range int64(2) {
		b := make([]byte, memoryPlace)
		if _, err := m.ReadAt(b, place*memoryPlace); err != nil {
			continue
		}
		n := binary.LittleEndian.Uint32(b)
		if n == 0 || n > memoryPlace-memoryHead {
			continue
		}
		var r remembered
		if wire.Decode(b[memoryHead:memoryHead+n], wire.KindPromise, &r) == nil && r.Node == node && r.Cluster == cluster && (!ok || r.Write > best.Write) {
			best, ok = r, true
		}
	}
	return best, ok
}

// keep writes one. Where the others do not fit, this node's own is kept alone.
func keep(m Memory, r remembered) error {
	for {
		b, err := wire.Append(make([]byte, memoryHead, memoryPlace), wire.KindPromise, r)
		if err != nil {
			return err
		}
		if len(b) <= memoryPlace {
			binary.LittleEndian.PutUint32(b, uint32(len(b)-memoryHead))
			_, err = m.WriteAt(b, int64(r.Write%2)*memoryPlace)
			return err
		}
		if len(r.Seen) == 0 {
			return fmt.Errorf("%d bytes do not fit", len(b))
		}
		r.Seen = nil
	}
}
