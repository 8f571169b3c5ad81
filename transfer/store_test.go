package transfer_test

import (
	"maps"
	"testing"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
	"github.com/replicad/replicad/transfer/storetest"
)

// without is what the stores of this package's tests can't do.
var without = map[storetest.Ability]string{
	storetest.Epochs: "no node is under them: tests have them refuse by hooks, and the protocol passes keys on as they are",
	storetest.Peers:  "no node is under them: tests have them refuse by hooks",
	storetest.Opens:  "what they take goes where the test compares it",
}

// TestStoreSuite: the stores that this package's tests rest on keep the contract.
func TestStoreSuite(t *testing.T) {
	parts := func() (has, takes storetest.Part) {
		b, _ := storetest.MemoryBed()
		return b.Has, b.Takes
	}
	whole := func(p storetest.Part) (b []byte) {
		for _, c := range p.Chunks {
			b = append(b, c...)
		}
		return b
	}
	t.Run("memStore", func(t *testing.T) {
		storetest.Run(t, func(*testing.T) storetest.Bed {
			has, takes := parts()
			s := transfer.NewMemStore(has.Manifest, whole(has), takes.Manifest)
			return storetest.Bed{Store: s, Peer: "n2", Has: has, Takes: takes, Took: s.Took, InUse: s.InUse, Without: without}
		})
	})
	t.Run("anySink", func(t *testing.T) {
		storetest.Run(t, func(*testing.T) storetest.Bed {
			has, takes := parts()
			s := transfer.NewAnySink(has.Manifest, whole(has))
			return storetest.Bed{Store: s, Peer: "n2", Has: has, Takes: takes, Took: s.Took, InUse: s.InUse, Without: without}
		})
	})
	t.Run("part", func(t *testing.T) {
		lacks := maps.Clone(without)
		lacks[storetest.Counts] = "its reader is the part itself, which nothing frees"
		storetest.Run(t, func(*testing.T) storetest.Bed {
			p, k := newPart(600 << 10)
			p.sealed = make(chan error, 16)
			of := storetest.Part{Key: k, Manifest: p.m}
			for i := range p.m.Chunks {
				off, n := replica.ChunkSpan(i, p.m.Bytes, p.m.ChunkBytes)
				of.Chunks = append(of.Chunks, p.b[off:off+n])
			}
			took := func() ([]byte, bool) { return p.got, p.got != nil }
			return storetest.Bed{Store: p, Peer: "n2", Has: of, Takes: of, Took: took, Without: lacks}
		})
	})
}
