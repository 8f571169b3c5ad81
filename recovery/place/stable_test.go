package place

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestPlacementIsStable: placing again comes to rest; a node that goes moves what it had alone; when it comes back nothing moves unless that
// puts copies further apart.
func TestPlacementIsStable(t *testing.T) {
	for seed := range uint64(20000) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		in := Placement{Job: replica.JobID{byte(seed)}, Copies: 2 + rnd.IntN(3), Nodes: map[replica.NodeName]replica.Node{}, Usable: map[replica.NodeName]bool{}}
		n := 3 + rnd.IntN(8)
		var names []replica.NodeName
		for i := range n {
			name := replica.NodeName(fmt.Sprint("n", i))
			names = append(names, name)
			labels := map[string]string{}
			if rnd.IntN(2) == 0 {
				labels["rack"] = fmt.Sprint("r", rnd.IntN(3))
			}
			if rnd.IntN(2) == 0 {
				labels["zone"] = fmt.Sprint("z", rnd.IntN(2))
			}
			in.Nodes[name], in.Usable[name] = replica.Node{Name: name, Labels: labels}, true
		}
		w := 1 + rnd.IntN(6)
		in.Layout.World = uint32(w)
		for range w {
			in.Layout.Groups = append(in.Layout.Groups, replica.GroupID(rnd.IntN(1+w/2)))
			in.Ranks = append(in.Ranks, replica.Claimed{Incarnation: 1, Node: names[rnd.IntN(n)]})
		}
		// groups dense
		seen := map[replica.GroupID]replica.GroupID{}
		for i, g := range in.Layout.Groups {
			if _, ok := seen[g]; !ok {
				seen[g] = replica.GroupID(len(seen))
			}
			in.Layout.Groups[i] = seen[g]
		}
		place := func() {
			r, g := Mirrors(in)
			in.Mirrors, in.GroupMirrors = r, g
		}
		place()
		first := [2][][]replica.NodeName{in.Mirrors, in.GroupMirrors}
		place()
		settled := false
		for i := 0; i < 50 && !settled; i++ {
			again := [2][][]replica.NodeName{in.Mirrors, in.GroupMirrors}
			settled = reflect.DeepEqual(again, first)
			first = again
			place()
		}
		if !settled {
			t.Errorf("seed %d copies %d: does not settle: %v", seed, in.Copies, first)
		}
		gone := names[rnd.IntN(n)]
		if slices.ContainsFunc(in.Ranks, func(c replica.Claimed) bool { return c.Node == gone }) || in.Copies != 2 {
			continue
		}
		before := in.Mirrors
		in.Usable[gone] = false
		place()
		for r := range before {
			if !slices.Contains(before[r], gone) && !slices.Equal(before[r], in.Mirrors[r]) {
				t.Errorf("seed %d: %s went, rank %d moved from %v to %v", seed, gone, r, before[r], in.Mirrors[r])
			}
		}
	}
}
