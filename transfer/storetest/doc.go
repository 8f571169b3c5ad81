// Package storetest is the contract of transfer.Store as a suite: each row is one case. Every store of the module passes the rows, those of
// tests included, but for what its bed leaves out with a reason.
//
// internal/importwall fails where a store has no run. The package is imported by tests alone.
package storetest

import (
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Part is a part in chunks, and the key that it goes by.
type Part struct {
	Key      transfer.Key
	Manifest replica.Manifest
	Chunks   [][]byte
}

// Make fills a part with seeded bytes, in chunks of so many. The root of its key and manifest follows from them.
func Make(k transfer.Key, seed, bytes uint64, chunk uint32) Part {
	m := replica.Manifest{Cluster: k.Cluster, Era: k.Era, Job: k.Job, Part: k.Part, Generation: k.Generation, Geometry: replica.Digest{9},
		Rank: k.Rank, Incarnation: k.Incarnation, Bytes: bytes, ChunkBytes: chunk}
	rng := rand.New(rand.NewPCG(seed, bytes))
	p := Part{Key: k}
	for i := range replica.ChunkCount(bytes, chunk) {
		_, n := replica.ChunkSpan(i, bytes, chunk)
		b := make([]byte, n)
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		p.Chunks, m.Chunks = append(p.Chunks, b), append(m.Chunks, xxh3.Hash128(b).Bytes())
	}
	m.Root = xxh3.Hash128(m.RootInput()).Bytes()
	p.Manifest, p.Key.Root = m, m.Root
	return p
}

// An Ability is what not every store can do.
type Ability string

// The abilities. A product's store has them all.
const (
	// Epochs: it knows which epochs, eras and incarnations are of now.
	Epochs Ability = "epochs"
	// Peers: it serves nobody but those that a key is for.
	Peers Ability = "peers"
	// Takes: it takes parts.
	Takes Ability = "takes"
	// Again: after a push that broke off it takes the part again.
	Again Ability = "again"
	// Opens: it serves what it has taken.
	Opens Ability = "opens"
	// Relays: it serves what is on its way to it.
	Relays Ability = "relays"
	// Judges: it refuses chunks of a wrong length or number.
	Judges Ability = "judges"
	// Counts: the bed can see what is in use.
	Counts Ability = "counts"
)

// Bed is one store, and what a test can do to it.
type Bed struct {
	Store transfer.Store
	// Peer is whom the keys are for; it may push Takes. Stranger is another node, which may do neither.
	Peer, Stranger replica.NodeName
	// Has is a part that the store serves. Takes is one that it takes from Peer, and has not yet.
	Has, Takes Part
	// Took is what lies where Takes was put, and whether it was sealed. Needed without Opens.
	Took func() (bytes []byte, sealed bool)
	// InUse names the readers that are open and the places that are being filled, once all that was ended has been given back.
	InUse func() []string
	// Do makes a call of the store, and has the store's owner work meanwhile. nil: it is called as it is.
	Do func(call func())
	// Without is what the store can't do, each with the reason why that hides no defect.
	Without map[Ability]string
}

// Row is one case of the suite. It returns what does not hold.
type Row struct {
	Name  string
	Needs []Ability
	Check func(b *Bed) error
}

// Run runs the whole suite. fresh makes a bed for each row.
func Run(t *testing.T, fresh func(t *testing.T) Bed) {
	for _, row := range Rows() {
		t.Run(row.Name, func(t *testing.T) {
			b := fresh(t)
			if a, why := b.lacks(row); why != "" {
				t.Logf("left out, without %q: %s", a, why)
				return
			}
			err := row.Check(&b)
			if err == nil {
				err = b.idle()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// lacks is the first ability that a row needs and the store has not, with the reason.
func (b *Bed) lacks(row Row) (Ability, string) {
	for _, a := range row.Needs {
		if why, lacks := b.Without[a]; lacks {
			return a, why
		}
	}
	return "", ""
}
