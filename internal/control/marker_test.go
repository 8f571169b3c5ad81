package control

import (
	"testing"

	"github.com/replicad/replicad/replica"
)

// The order to commit a generation of 10,000 ranks, each a group of its own and eight on a node, goes in one frame with room to spare.
func TestMarkerOrderOfManyRanks(t *testing.T) {
	const ranks = 10_000
	sum := make([]byte, 32)
	key := "step-00012000.e3/group-9999.w123456.safetensors"
	o := MarkerOrder{Generation: replica.Generation{Epoch: 3, Step: 12_000}, Number: 123_456}
	for i := range ranks {
		frozen := &replica.Stored{Key: "frozen/group-9999-00000000000000000000000000000000.a.safetensors", Twin: "frozen/group-9999-00000000000000000000000000000000.b.safetensors", Bytes: 1 << 40, Header: 1 << 20, SHA256: sum}
		o.Shards = append(o.Shards, ShardReport{Generation: o.Generation, Number: o.Number, Part: replica.OfGroup(replica.GroupID(i)), Info: replica.Stored{Key: key, Bytes: 1 << 40, Header: 1 << 20, SHA256: sum, Frozen: frozen}})
		if i%8 == 0 {
			o.Shards = append(o.Shards, ShardReport{Generation: o.Generation, Number: o.Number, Part: replica.OfRank(replica.Rank(i)), Info: replica.Stored{Key: key, Bytes: 1 << 40, Header: 1 << 20, SHA256: sum}, Also: make([]replica.Part, 7)})
		}
	}
	frames, err := Encode(ToNode, o)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range frames {
		n += len(f)
	}
	if n > MaxLinkFrame/2 {
		t.Errorf("%d bytes, a frame takes %d", n, MaxLinkFrame)
	}
}
