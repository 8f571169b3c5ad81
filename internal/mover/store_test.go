package mover

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
	"github.com/replicad/replicad/transfer/storetest"
)

// TestStoreSuite: the stores of the other nodes in this package's tests keep the contract.
func TestStoreSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Bed {
		p, at := newPart(10*chunk+5), newPlace()
		p.take = func(transfer.Key) (*place, error) { return at, nil }
		of := storetest.Part{Key: p.key(), Manifest: p.man}
		for i := range p.man.Chunks {
			off, n := replica.ChunkSpan(i, p.man.Bytes, chunk)
			of.Chunks = append(of.Chunks, p.bytes[off:off+n])
		}
		return storetest.Bed{Store: p, Peer: "n1", Has: of, Takes: of,
			Took: func() (b []byte, sealed bool) {
				for i := range len(at.chunks) {
					b = append(b, at.chunks[i]...)
				}
				return b, at.sealed > 0
			},
			InUse: func() []string { return slices.Repeat([]string{"reader"}, p.opened-p.closed) },
			Without: map[storetest.Ability]string{
				storetest.Epochs: "no node is under it: the mover knows no epochs, and tests have it refuse",
				storetest.Peers:  "no node is under it: the mover's peers are those that it dials",
				storetest.Opens:  "what it takes goes where the test compares it",
			}}
	})
}
