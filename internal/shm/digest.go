package shm

import (
	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/replica"
)

// Hash is the XXH3-128 of b: a chunk's digest.
func Hash(b []byte) replica.Digest { return xxh3.Hash128(b).Bytes() }

// Root is the root digest that m's fields and chunk digests make; m.Root is not looked at.
func Root(m *replica.Manifest) replica.Digest { return Hash(m.RootInput()) }

// GeometryDigest is the digest of the regions of one kind of part.
func GeometryDigest(g replica.Geometry, k replica.PartKind) replica.Digest {
	return Hash(g.DigestInput(k))
}
