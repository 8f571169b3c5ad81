package recovery

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Placement is what the placement of mirrors depends on.
type Placement struct {
	Job          replica.JobID
	Layout       replica.Layout
	Ranks        []replica.Claimed
	Nodes        map[replica.NodeName]replica.Node
	Usable       map[replica.NodeName]bool // nodes that answer and are not in a fault or quarantined
	Copies       int                       // nodes that should hold each part, the producers' included; below 1: the default
	Mirrors      [][]replica.NodeName      // present ones, kept where they are as good as any
	GroupMirrors [][]replica.NodeName
	// Misfit tells whether a node can't get now what another one makes: it takes a part only where nobody else can. Nil: none.
	Misfit func(from, mirror replica.NodeName) bool
}

// DefaultMinCopies is the number of nodes that must hold each part at a commit unless the job says otherwise.
const DefaultMinCopies = 2

func minCopies(o replica.Options) int {
	if o.MinCopies > 0 {
		return o.MinCopies
	}
	return DefaultMinCopies
}

// PlaceMirrors says which nodes mirror the private part of each rank, and the replicated part of each group that has members
// on too few nodes. A mirror is never on a node that produces the part, in another failure domain while one is free, on a
// node that the part's maker reaches while there is one, and stays where it is unless a better place exists; ties go by rendezvous order, so that parts spread evenly.
func PlaceMirrors(in Placement) (byRank, byGroup [][]replica.NodeName) {
	copies := in.Copies
	if copies < 1 {
		copies = DefaultMinCopies
	}
	byRank = make([][]replica.NodeName, len(in.Ranks))
	members := make([][]replica.NodeName, len(in.Layout.Groups)) // the lowest rank's node first: it sends the group's part
	groups := 0
	for r, c := range in.Ranks {
		g := int(in.Layout.Groups[r])
		groups = max(groups, g+1)
		if c.Incarnation != 0 {
			byRank[r] = in.place(replica.OfRank(replica.Rank(r)), []replica.NodeName{c.Node}, at(in.Mirrors, r), copies-1)
			if !slices.Contains(members[g], c.Node) {
				members[g] = append(members[g], c.Node)
			}
		}
	}
	byGroup = make([][]replica.NodeName, groups)
	for g := range byGroup {
		if len(members[g]) > 0 {
			byGroup[g] = in.place(replica.OfGroup(replica.GroupID(g)), members[g], at(in.GroupMirrors, g), copies-len(members[g]))
		}
	}
	return byRank, byGroup
}

func at(lists [][]replica.NodeName, i int) []replica.NodeName {
	if i < len(lists) {
		return lists[i]
	}
	return nil
}

// place picks n nodes for a part that lies on the nodes own already.
func (in Placement) place(part replica.Part, own, present []replica.NodeName, n int) []replica.NodeName {
	taken := slices.Clone(own)
	var picked []replica.NodeName
	for len(picked) < n {
		best, found := spot{}, false
		for name, usable := range in.Usable {
			node, known := in.Nodes[name]
			if !usable || !known || slices.Contains(taken, name) {
				continue
			}
			s := spot{name: name, shared: sharedDomains(in.Nodes, node, taken), weight: weigh(in.Job, part, name)}
			if slices.Contains(present, name) {
				s.present = 1
			}
			if in.Misfit != nil && in.Misfit(own[0], name) {
				s.misfit = 1
			}
			if !found || s.better(best) {
				best, found = s, true
			}
		}
		if !found {
			break
		}
		picked, taken = append(picked, best.name), append(taken, best.name)
	}
	return picked
}

// spot is a node as a place for one mirror.
type spot struct {
	name    replica.NodeName
	misfit  int // 1: can't get the part now
	shared  int // failure domains in common with nodes that hold the part
	present int // 1: mirrors it already
	weight  uint64
}

func (s spot) better(o spot) bool {
	return cmp.Or(cmp.Compare(o.misfit, s.misfit), cmp.Compare(o.shared, s.shared), cmp.Compare(s.present, o.present), cmp.Compare(s.weight, o.weight), cmp.Compare(o.name, s.name)) > 0
}

// domains are the labels that name failure domains, with the harm of sharing one: a host falls more often than a rack.
var domains = []struct {
	label string
	harm  int
}{{"zone", 1}, {"rack", 2}, {"host", 4}}

// sharedDomains is the worst harm of the domains that n has in common with one of others.
func sharedDomains(nodes map[replica.NodeName]replica.Node, n replica.Node, others []replica.NodeName) int {
	worst := 0
	for _, name := range others {
		o, harm := nodes[name], 0
		for _, d := range domains {
			if l := n.Labels[d.label]; l != "" && l == o.Labels[d.label] {
				harm += d.harm
			}
		}
		worst = max(worst, harm)
	}
	return worst
}

// weigh is the rendezvous weight of a node for a part of a job.
func weigh(job replica.JobID, part replica.Part, node replica.NodeName) uint64 {
	h := fnv.New64a()
	h.Write(job[:])
	h.Write(binary.LittleEndian.AppendUint32([]byte{byte(part.Kind)}, part.Index))
	h.Write([]byte(node))
	// FNV's high bits hardly differ between short names; this finalizer (splitmix64's) spreads them.
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
