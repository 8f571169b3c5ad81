package bench

import (
	"testing"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer/storetest"
)

// TestStoreSuite: what the sources of measured transfers serve keeps the contract.
func TestStoreSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Bed {
		p, err := newPart(9<<20 + 5)
		if err != nil {
			t.Fatal(err)
		}
		has := storetest.Part{Key: p.key, Manifest: p.manifest}
		for i := range p.manifest.Chunks {
			off, n := replica.ChunkSpan(i, p.manifest.Bytes, p.manifest.ChunkBytes)
			has.Chunks = append(has.Chunks, p.from[off:off+n])
		}
		return storetest.Bed{Store: p, Peer: receiverName, Has: has, Without: map[storetest.Ability]string{
			storetest.Epochs: "the key is all that a measured transfer knows",
			storetest.Peers:  "the servers of a measurement know no nodes but their peers",
			storetest.Takes:  "what is measured are fetches: it refuses pushes",
			storetest.Counts: "its reader is the part itself, which nothing frees",
		}}
	})
}
