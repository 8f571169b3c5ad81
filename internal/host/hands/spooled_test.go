package hands

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// What is told of a spool fits a frame: the newest writes, without their pieces.
func TestWhatIsToldOfASpool(t *testing.T) {
	arena := roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false), Slots: 2})
	var left []*tier.Spooled
	for _, step := range []replica.Step{2, 6, 4} {
		g := fixture.Gen(1, step)
		n := &tier.Spooled{Job: "job", Node: "n1", Generation: g, Number: 1, Object: "group-0", Parts: []replica.Part{replica.OfGroup(0)}, Roots: []tier.Rooted{{Part: replica.OfGroup(0)}}, Said: tier.Said{Position: replica.Position(g), Layout: fixture.Job().Layout}}
		n.Said.Recipe = []byte(strings.Repeat("r", mostTold/3)) // a third more in base64
		if err := tier.AddPiece(n, "a-file", roomtest.Manifest(arena, shm.Place{Kind: shm.Slot}, g), fixture.Geometry(t, false).Regions); err != nil {
			t.Fatal(err)
		}
		left = append(left, n)
	}
	list := told(left)
	if len(list) != 2 {
		t.Fatalf("%d are told", len(list))
	}
	for i, step := range []replica.Step{6, 4} {
		n, err := tier.ParseSpooled(list[i])
		if err != nil || n.Generation.Step != step || len(n.Pieces) != 0 {
			t.Errorf("told is %+v, %v", n, err)
		}
	}
	if len(left[0].Pieces) != 1 {
		t.Error("the pieces are gone")
	}
}
