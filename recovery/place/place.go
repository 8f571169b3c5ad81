// Package place decides which nodes hold copies of a part, and from whom a rank takes it. Copies lie far apart in failure domains, move
// seldom, and are shared out evenly. Plain data in, plain data out: it imports only replica besides the standard library.
package place

import (
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
	// Shuns tells whether a node does not take one part now, likewise.
	Shuns func(part replica.Part, mirror replica.NodeName) bool
}

func MinCopies(o replica.Options) int {
	if o.MinCopies > 0 {
		return o.MinCopies
	}
	return replica.DefaultMinCopies
}

// Mirrors says which nodes mirror the private part of each rank, and the replicated part of each group that has members
// on too few nodes, or on enough that share a failure domain while a node in another one is free. A mirror is never on a node that produces the part, in another failure domain while one is free, on a
// node that the part's maker reaches while there is one, and stays where it is unless a better place exists. Of places that are as good it gets
// the node with the fewest mirrors of its kind: a node needs memory for the most that any may get. Ties go by rendezvous order.
func Mirrors(in Placement) (byRank, byGroup [][]replica.NodeName) {
	copies := in.Copies
	if copies < 1 {
		copies = replica.DefaultMinCopies
	}
	g := newGround(in)
	byRank = make([][]replica.NodeName, len(in.Ranks))
	members := make([][]replica.NodeName, len(in.Layout.Groups)) // the lowest rank's node first: it sends the group's part
	member := make(map[inGroup]bool)
	groups := 0
	g.count(in.Mirrors)
	for r, c := range in.Ranks {
		group := int(in.Layout.Groups[r])
		groups = max(groups, group+1)
		if c.Incarnation != 0 {
			byRank[r] = g.place(replica.OfRank(replica.Rank(r)), []replica.NodeName{c.Node}, At(in.Mirrors, r), copies-1,
				further{beyond: copies - 1})
			if at := (inGroup{group, c.Node}); !member[at] {
				member[at] = true
				members[group] = append(members[group], c.Node)
			}
		}
	}
	byGroup = make([][]replica.NodeName, groups)
	g.count(in.GroupMirrors)
	for i := range byGroup {
		if len(members[i]) > 0 {
			apart, harm := g.apart(members[i], copies)
			byGroup[i] = g.place(replica.OfGroup(replica.GroupID(i)), members[i], At(in.GroupMirrors, i), copies-apart,
				further{copies - len(members[i]), harm})
		}
	}
	return byRank, byGroup
}

// inGroup is a node with ranks of a group.
type inGroup struct {
	group int
	node  replica.NodeName
}

func At(lists [][]replica.NodeName, i int) []replica.NodeName {
	if i < len(lists) {
		return lists[i]
	}
	return nil
}

// ground is the nodes that mirrors can be placed on, made ready to be looked at once for each part.
type ground struct {
	Placement
	sites  []site
	index  map[replica.NodeName]int // into sites
	values map[string]int32         // of labels, numbered
	misfit map[replica.NodeName][]bool
}

// site is a usable node, with the numbers of its labels; 0: it has none.
type site struct {
	name   replica.NodeName
	labels labels
	load   int // mirrors of one kind of part that it has or gets
}

type labels [len(Harms)]int32

func newGround(in Placement) *ground {
	g := &ground{Placement: in, index: make(map[replica.NodeName]int), values: make(map[string]int32), misfit: make(map[replica.NodeName][]bool)}
	for name, usable := range in.Usable {
		if _, known := in.Nodes[name]; usable && known {
			g.index[name] = len(g.sites)
			g.sites = append(g.sites, site{name: name, labels: g.labels(name)})
		}
	}
	return g
}

// count begins a kind of part with the mirrors of it that there are.
func (g *ground) count(present [][]replica.NodeName) {
	for i := range g.sites {
		g.sites[i].load = 0
	}
	for _, list := range present {
		g.carry(list, 1)
	}
}

// carry has nodes carry so many more mirrors each.
func (g *ground) carry(nodes []replica.NodeName, more int) {
	for _, n := range nodes {
		if i, ok := g.index[n]; ok {
			g.sites[i].load += more
		}
	}
}

func (g *ground) labels(n replica.NodeName) (l labels) {
	for i, h := range Harms {
		v := g.Nodes[n].Labels[h.Label]
		if v == "" {
			continue
		}
		if g.values[v] == 0 {
			g.values[v] = int32(len(g.values) + 1)
		}
		l[i] = g.values[v]
	}
	return l
}

// shared is the harm of the domains that two nodes have in common.
func (l labels) shared(o labels) (harm int) {
	for i, h := range Harms {
		if l[i] != 0 && l[i] == o[i] {
			harm += h.Harm
		}
	}
	return harm
}

// misfits tells by site whether it can't get now what a node makes.
func (g *ground) misfits(from replica.NodeName) []bool {
	out, known := g.misfit[from]
	if !known && g.Misfit != nil {
		out = make([]bool, len(g.sites))
		for i, s := range g.sites {
			out[i] = s.name != from && g.Misfit(from, s.name)
		}
		g.misfit[from] = out
	}
	return out
}

// apart counts the members of a group that share no failure domain with each other, up to copies, and says what harm the best of the others
// shares with them; 0: there is none. The first member is one of them.
func (g *ground) apart(members []replica.NodeName, copies int) (n, harm int) {
	taken := []labels{g.labels(members[0])}
	for _, m := range members[1:] {
		if len(taken) >= copies {
			break
		}
		l, shared := g.labels(m), 0
		for _, t := range taken {
			shared = max(shared, l.shared(t))
		}
		if shared == 0 {
			taken = append(taken, l)
		} else if harm == 0 || shared < harm {
			harm = shared
		}
	}
	return len(taken), harm
}

// further bounds what place picks beyond so many nodes: each of these is one that gets the part, and shares less harm with those that have it.
type further struct{ beyond, harm int }

// place picks n nodes for a part that lies on the nodes own already.
func (g *ground) place(part replica.Part, own, present []replica.NodeName, n int, f further) (picked []replica.NodeName) {
	g.carry(present, -1)
	defer func() { g.carry(picked, 1) }()
	if n <= 0 {
		return nil
	}
	taken, weight, misfits := make([]site, len(own)), NewWeigher(g.Job, part), g.misfits(own[0])
	for i, name := range own {
		taken[i] = site{name: name, labels: g.labels(name)}
	}
	for len(picked) < n {
		var best spot
		where := -1
		for i := range g.sites {
			s := &g.sites[i]
			p, held := spot{name: s.name, load: s.load}, false
			for k := range taken {
				held = held || taken[k].name == s.name
				p.shared = max(p.shared, s.labels.shared(taken[k].labels))
			}
			if held {
				continue
			}
			if len(present) > 0 && slices.Contains(present, s.name) {
				p.present = 1
			}
			if misfits != nil && misfits[i] || g.Shuns != nil && g.Shuns(part, s.name) {
				p.misfit = 1
			}
			if where >= 0 && p.cruder(&best) < 0 {
				continue
			}
			if p.weight = weight.Of(s.name); where < 0 || p.better(&best) {
				best, where = p, i
			}
		}
		if where < 0 || len(picked) >= f.beyond && (best.misfit > 0 || best.shared >= f.harm) {
			break
		}
		picked, taken = append(picked, best.name), append(taken, g.sites[where])
	}
	return picked
}

// spot is a node as a place for one mirror.
type spot struct {
	name    replica.NodeName
	misfit  int // 1: can't get the part now
	shared  int // failure domains in common with nodes that hold the part
	present int // 1: mirrors it already
	load    int // mirrors of other parts of this kind
	weight  uint64
}

func (s *spot) better(o *spot) bool {
	switch crude := s.cruder(o); {
	case crude != 0:
		return crude > 0
	case s.weight != o.weight:
		return s.weight > o.weight
	}
	return s.name < o.name
}

// cruder compares spots by all but their weights, which cost the most: above 0, s is better.
func (s *spot) cruder(o *spot) int {
	if s.misfit != o.misfit {
		return o.misfit - s.misfit
	}
	if s.shared != o.shared {
		return o.shared - s.shared
	}
	if s.present != o.present {
		return s.present - o.present
	}
	return o.load - s.load
}

// Harms are the labels that name failure domains, with the harm of sharing one: a host falls more often than a rack.
var Harms = [...]struct {
	Label string
	Harm  int
}{{"zone", 1}, {"rack", 2}, {"host", 4}}

// Weigh is the rendezvous weight of a node for a part of a job.
func Weigh(job replica.JobID, part replica.Part, node replica.NodeName) uint64 {
	return NewWeigher(job, part).Of(node)
}

// weigher is the 64-bit FNV-1a hash of a job and a part, ready for the names of nodes: a part is weighed for many.
type weigher uint64

func NewWeigher(job replica.JobID, part replica.Part) weigher {
	h := weigher(14695981039346656037)
	for _, b := range job {
		h = h.with(b)
	}
	h = h.with(byte(part.Kind))
	for i := range 4 {
		h = h.with(byte(part.Index >> (8 * i)))
	}
	return h
}

func (h weigher) with(b byte) weigher { return (h ^ weigher(b)) * 1099511628211 }

func (h weigher) Of(node replica.NodeName) uint64 {
	for i := range len(node) {
		h = h.with(node[i])
	}
	// FNV's high bits hardly differ between short names; this finalizer (splitmix64's) spreads them.
	x := uint64(h)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
