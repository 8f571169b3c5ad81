// Package durabletest makes the parts of small generations, for tests of the durable tier: two ranks in one group or in two, with gaps between
// regions, an empty one, every class, a layout, and generators.
package durabletest

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"

	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/rng"
)

// Names of what is made.
const (
	JobName = "opticks"
	Chunk   = 256
	Write   = 17
)

// Ids of what is made.
var (
	Job     = replica.JobID{0xab, 0x01, 0x02, 0x03}
	Cluster = replica.ClusterID{1}
)

// Part is a sealed part.
type Part struct {
	Manifest replica.Manifest
	Regions  []replica.Region // all of its rank
	Bytes    []byte
}

// Read gives a chunk.
func (p Part) Read(i int, dst []byte) ([]byte, error) {
	off, n := replica.ChunkSpan(i, p.Manifest.Bytes, p.Manifest.ChunkBytes)
	return dst[:copy(dst[:n], p.Bytes[off:off+n])], nil
}

// Generation is what a job of two ranks has.
type Generation struct {
	Generation replica.Generation
	Layout     replica.Layout
	Frozen     []Part // by group
	Groups     []Part // by group
	Private    []Part // by rank
}

// capsule packs a JSON text and one blob as replicad's Python package does.
func capsule(tree any, blob []byte) []byte {
	text, err := json.Marshal(tree)
	if err != nil {
		panic(err) // a test's own tree
	}
	b := binary.LittleEndian.AppendUint64([]byte("RPCAP001"), uint64(len(text)))
	b = append(b, text...)
	b = append(b, make([]byte, (64-len(b)%64)%64)...)
	return append(b, blob...)
}

// laid is what a group says of its layout: "weight" is a shard of a tensor of 10 rows.
func laid(group uint32) []byte {
	return capsule(map[string]any{"version": 1, "tensors": map[string]any{
		"weight": map[string]any{"shape": []int{10, 7}, "local": []int{5, 7}, "offset": []int{5 * int(group), 0}, "placements": []string{"shard(0)"}, "mesh": []int{2}},
		"sgd":    map[string]any{"shape": []int{}, "local": []int{}, "offset": nil, "placements": []string{"by parameter"}, "mesh": []int{2}},
	}}, nil)
}

// own is a rank's private state: generators, and where its loader is.
func own(rank uint32) []byte {
	states := rng.States{{Place: rng.Python, State: python(rank)}}
	blob, err := states.Append(nil)
	if err != nil {
		panic(err) // a test's own state
	}
	b := capsule(map[string]any{"data": map[string]any{"train": map[string]any{"epoch": 3, "batch": 40 + rank}}, "rng": map[string]any{"$": "bytes", "at": 0, "n": len(blob)}}, blob)
	b = append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b...)
	return append(b, make([]byte, 4096-len(b))...)
}

func python(seed uint32) rng.Python3 {
	var s rng.Python3
	for i := range s.Words {
		s.Words[i] = seed + uint32(i)*7 + 1
	}
	s.Position = rng.Words
	return s
}

// regions of a rank. The layout's bytes are of its group.
func regions(lay int, more []replica.Region) replica.Geometry {
	g, err := replica.NewGeometry(append([]replica.Region{
		{Name: "weight", DType: replica.F32, Shape: []uint64{5, 7}, Bytes: 140},
		{Name: "cursor", DType: replica.U64, Kind: replica.Private, Class: replica.Volatile, Shape: []uint64{2}, Bytes: 16},
		{Name: "base", DType: replica.BF16, Class: replica.Frozen, Shape: []uint64{90}, Bytes: 180},
		{Name: "replicad.layout", DType: replica.U8, Class: replica.Frozen, Shape: []uint64{uint64(lay)}, Bytes: uint64(lay)},
		{Name: "empty", DType: replica.F64, Shape: []uint64{3, 0}},
		{Name: "moment \"m\"", DType: replica.F32, Shape: []uint64{1501}, Bytes: 6004},
		{Name: "scale", DType: replica.F8E4M3, Class: replica.Volatile, Shape: []uint64{1}, Bytes: 1},
		{Name: "steps", DType: replica.I64, Class: replica.Volatile, Shape: nil, Bytes: 8},
		{Name: "replicad.own", DType: replica.U8, Kind: replica.Private, Flags: replica.InWindow, Shape: []uint64{4096}, Bytes: 4096},
	}, more...))
	if err != nil {
		panic(err) // the regions above
	}
	return g
}

// Trained are regions that a program with an optimizer has besides: its state lies between and behind what is kept of a stripped generation.
func Trained() []replica.Region {
	return []replica.Region{
		{Name: "optim.weight.exp_avg", DType: replica.F32, Shape: []uint64{5, 7}, Bytes: 140},
		{Name: "optim.param.0.1", DType: replica.F32, Shape: []uint64{3}, Bytes: 12},
		{Name: "optim.param.0.1.exp_avg", DType: replica.F32, Shape: []uint64{900}, Bytes: 3600},
		{Name: "bias", DType: replica.F32, Shape: []uint64{200}, Bytes: 800},
		{Name: "optim.groups.0.lr", DType: replica.F32, Class: replica.Volatile, Bytes: 4},
		{Name: "count", DType: replica.F32, Class: replica.Volatile, Bytes: 4},
	}
}

// Make makes a generation of two ranks in so many groups: 1 or 2. Its bytes follow from its name; frozen parts are those of every generation. more are
// regions that its ranks have besides.
func Make(gen replica.Generation, groups int, more ...replica.Region) Generation {
	out := Generation{Generation: gen, Layout: replica.Layout{World: 2, Groups: []replica.GroupID{0, replica.GroupID(groups - 1)}}}
	for group := range uint32(groups) {
		fill := map[string][]byte{LayoutRegion: laid(group)}
		g := regions(len(fill[LayoutRegion]), more)
		frozen := seal(g, replica.FrozenOf(replica.GroupID(group)), gen, replica.Digest{}, fill)
		out.Frozen = append(out.Frozen, frozen)
		out.Groups = append(out.Groups, seal(g, replica.OfGroup(replica.GroupID(group)), gen, frozen.Manifest.Root, nil))
	}
	for rank := range uint32(2) {
		lay := len(laid(uint32(out.Layout.Groups[rank])))
		out.Private = append(out.Private, seal(regions(lay, more), replica.OfRank(replica.Rank(rank)), gen, replica.Digest{}, map[string][]byte{"replicad.own": own(rank)}))
	}
	return out
}

// LayoutRegion is format's.
const LayoutRegion = "replicad.layout"

func seal(g replica.Geometry, part replica.Part, gen replica.Generation, frozen replica.Digest, fill map[string][]byte) Part {
	size := map[replica.PartKind]uint64{replica.ReplicatedPart: g.ReplicatedBytes, replica.PrivatePart: g.PrivateBytes, replica.FrozenPart: g.FrozenBytes}[part.Kind]
	b := make([]byte, size)
	seed := uint64(gen.Step)
	if part.Kind == replica.FrozenPart {
		seed = 0
	}
	random := rand.New(rand.NewPCG(uint64(part.Kind)<<32|uint64(part.Index), seed))
	for _, r := range g.Regions {
		if !safetensors.Belongs(r, part.Kind) {
			continue
		}
		for i := range r.Bytes {
			b[r.Offset+i] = byte(random.Uint32())
		}
		if f := fill[r.Name]; f != nil {
			copy(b[r.Offset:r.Offset+r.Bytes], f)
		}
	}
	m := replica.Manifest{Cluster: Cluster, Era: 1, Job: Job, Part: part, Generation: gen, Rank: 1, Incarnation: 2,
		Geometry: safetensors.Hash(g.DigestInput(part.Kind)), FrozenRoot: frozen, Bytes: size, ChunkBytes: Chunk,
		Lineage: replica.Lineage{{Epoch: 1, Start: 0}}, Regions: g.Of(part.Kind)}
	for i := range replica.ChunkCount(size, Chunk) {
		off, n := replica.ChunkSpan(i, size, Chunk)
		m.Chunks = append(m.Chunks, safetensors.Hash(b[off:off+n]))
	}
	m.Root = safetensors.Hash(m.RootInput())
	return Part{m, g.Regions, b}
}
