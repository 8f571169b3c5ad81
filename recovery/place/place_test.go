package place_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/replica"
)

func placement(ranks []replica.NodeName, groups []replica.GroupID, labels map[replica.NodeName]string, usable ...replica.NodeName) place.Placement {
	p := place.Placement{Job: replica.JobID{3}, Layout: replica.Layout{World: uint32(len(ranks)), Groups: groups}, Nodes: map[replica.NodeName]replica.Node{}, Usable: map[replica.NodeName]bool{}, Copies: 2}
	for i, n := range ranks {
		p.Ranks = append(p.Ranks, replica.Claimed{Incarnation: replica.Incarnation(i + 1), Node: n})
		p.Nodes[n] = replica.Node{Name: n, Labels: map[string]string{"rack": labels[n]}}
	}
	for _, n := range usable {
		p.Usable[n] = true
		p.Nodes[n] = replica.Node{Name: n, Labels: map[string]string{"rack": labels[n]}}
	}
	return p
}

func TestPlaceMirrors(t *testing.T) {
	racks := map[replica.NodeName]string{"a": "1", "b": "1", "c": "2", "d": "2"}
	t.Run("never on the rank's own node", func(t *testing.T) {
		byRank, byGroup := place.Mirrors(placement([]replica.NodeName{"a", "a"}, []replica.GroupID{0, 0}, nil, "a"))
		if len(byRank[0])+len(byRank[1])+len(byGroup[0]) != 0 {
			t.Errorf("mirrors %v %v in a cluster of one node", byRank, byGroup)
		}
	})
	t.Run("another failure domain while one is free", func(t *testing.T) {
		byRank, _ := place.Mirrors(placement([]replica.NodeName{"a", "b", "c"}, []replica.GroupID{0, 0, 0}, racks, "a", "b", "c", "d"))
		for r, list := range byRank {
			own := []string{"1", "1", "2"}[r]
			if len(list) != 1 || racks[list[0]] == own {
				t.Errorf("rank %d in rack %s is mirrored by %v", r, own, list)
			}
		}
	})
	t.Run("a group with members on two nodes needs no mirror, a lone member does", func(t *testing.T) {
		_, byGroup := place.Mirrors(placement([]replica.NodeName{"a", "b", "a"}, []replica.GroupID{0, 0, 1}, nil, "a", "b", "c"))
		if len(byGroup[0]) != 0 || len(byGroup[1]) != 1 || byGroup[1][0] == "a" {
			t.Errorf("group mirrors %v", byGroup)
		}
	})
	t.Run("stays where it is", func(t *testing.T) {
		in := placement([]replica.NodeName{"a", "b"}, []replica.GroupID{0, 0}, nil, "a", "b")
		in.Mirrors, in.GroupMirrors = place.Mirrors(in)
		for i := range 20 { // newcomers, some of which weigh more
			n := replica.NodeName(fmt.Sprintf("n%d", i))
			in.Usable[n], in.Nodes[n] = true, replica.Node{Name: n}
		}
		byRank, _ := place.Mirrors(in)
		if !slices.Equal(byRank[0], in.Mirrors[0]) || !slices.Equal(byRank[1], in.Mirrors[1]) {
			t.Errorf("mirrors moved from %v to %v for nothing", in.Mirrors, byRank)
		}
	})
	t.Run("each node gets its share", func(t *testing.T) {
		in := placement(nil, nil, nil)
		var nodes []replica.NodeName
		for i := range 64 {
			n := replica.NodeName(fmt.Sprintf("n%d", i/8))
			in.Ranks = append(in.Ranks, replica.Claimed{Incarnation: 1, Node: n})
			in.Layout.Groups = append(in.Layout.Groups, replica.GroupID(i))
			in.Nodes[n], in.Usable[n] = replica.Node{Name: n}, true
		}
		for n := range in.Nodes {
			nodes = append(nodes, n)
		}
		in.Layout.World = 64
		even := func(when string, most int) {
			t.Helper()
			byRank, byGroup := place.Mirrors(in)
			for _, lists := range [][][]replica.NodeName{byRank, byGroup} {
				load := map[replica.NodeName]int{}
				for _, list := range lists {
					load[list[0]]++
				}
				for _, n := range nodes {
					if load[n] > most {
						t.Errorf("%s: node %s has %d of 64 mirrors, the most is to be %d", when, n, load[n], most)
					}
				}
			}
			in.Mirrors, in.GroupMirrors = byRank, byGroup
		}
		for seed := range byte(20) {
			in.Job, in.Mirrors, in.GroupMirrors = replica.JobID{seed}, nil, nil
			in.Usable["n3"] = true
			even("at the beginning", 9)
			in.Usable["n3"] = false // its ranks stay where they are, its mirrors go elsewhere
			even("without a node", 11)
		}
	})
	t.Run("spreads", func(t *testing.T) {
		var nodes []replica.NodeName
		for i := range 10 {
			nodes = append(nodes, replica.NodeName(fmt.Sprintf("n%d", i)))
		}
		var ranks []replica.NodeName
		var groups []replica.GroupID
		for i := range 200 {
			ranks, groups = append(ranks, nodes[i%10]), append(groups, 0)
		}
		byRank, _ := place.Mirrors(placement(ranks, groups, nil, nodes...))
		load := map[replica.NodeName]int{}
		for _, list := range byRank {
			load[list[0]]++
		}
		for _, n := range nodes {
			if load[n] < 18 || load[n] > 22 {
				t.Errorf("node %s has %d of 200 mirrors", n, load[n])
			}
		}
	})
}
