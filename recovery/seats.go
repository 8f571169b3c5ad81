package recovery

import (
	"cmp"
	"slices"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// seats is what nodes offer a job, less what was offered of it, counted once a step and kept while the step makes offers: a look at one
// place for one rank then costs the same however many ranks and nodes there are.
type seats struct {
	of       *seating
	in       *plan.Input
	starting map[replica.Rank][]replica.NodeName // nodes that run a process for the rank which has not attached, by name
	berths   map[replica.NodeName]*berth
	open     [2][]*berth // with a process left, which may be given ranks: of launchers that want any, and of spares
	looks    int         // at berths, by best

	// Of whom a place would be shared with; made when the first rank is to be placed.
	placed  bool
	shared  map[crowd]int
	domains map[domain]int32
}

// berth is a node as a place for ranks.
type berth struct {
	name      replica.NodeName
	report    replica.NodeReport
	connected bool
	left      int // processes that it could still start beyond those it has been asked for
	at        int // in open; -1: not there
	load      int // ranks of the job that it runs, or is about to
	id        int32
	// by set of labels: what it shares with the nodes whose labels of the set are the same; 0: it lacks one
	domains [1 << len(place.Harms)]int32
	shards  map[replica.GroupID]bool
}

// crowd is one group's ranks on one node, or in one failure domain.
type crowd struct {
	group replica.GroupID
	id    int32
}

// domain is the values of a set of labels.
type domain struct {
	set    int
	values [len(place.Harms)]string
}

// seats counts what is on offer in this step.
func (se *seating) seats(in *plan.Input) *seats {
	if se.seated != nil {
		return se.seated
	}
	s := &seats{of: se, in: in, starting: make(map[replica.Rank][]replica.NodeName),
		berths: make(map[replica.NodeName]*berth, len(in.Nodes))}
	se.seated = s
	for n := range in.Nodes {
		rep, connected := in.Current(n)
		s.berths[n] = &berth{name: n, report: rep, connected: connected, left: rep.Offers, at: -1}
		if connected {
			for _, r := range rep.Starting {
				s.starting[r] = append(s.starting[r], n)
			}
		}
	}
	for _, names := range s.starting {
		slices.Sort(names)
	}
	for r, o := range se.offers {
		if b := s.berths[o.node]; b != nil && !s.starts(o.node, r) { // one that was taken up is no longer among the offers of the node
			b.left--
		}
	}
	for _, b := range s.berths {
		s.list(b)
	}
	return s
}

// list keeps the open berths those with a process left.
func (s *seats) list(b *berth) {
	open := &s.open[0]
	if b.report.Spare {
		open = &s.open[1]
	}
	switch want := b.left > 0 && b.connected && s.of.known.admissible(b.name); {
	case want && b.at < 0:
		b.at = len(*open)
		*open = append(*open, b)
	case !want && b.at >= 0:
		last := (*open)[len(*open)-1]
		(*open)[b.at], last.at = last, b.at
		*open, b.at = (*open)[:len(*open)-1], -1
	}
}

// free is how many processes a node could still start beyond those it has been asked for.
func (s *seats) free(n replica.NodeName) int {
	if b := s.berths[n]; b != nil {
		return b.left
	}
	return 0
}

// left is how many processes are on offer that no rank was offered to.
func (s *seats) left() (n int) {
	for _, open := range s.open {
		for _, b := range open {
			n += b.left
		}
	}
	return n
}

// starts tells whether a node says that a process runs there for a rank and has not attached yet.
func (s *seats) starts(n replica.NodeName, r replica.Rank) bool {
	return slices.Contains(s.starting[r], n)
}

// assign gives a rank that has no offer to a node; the empty name to none.
func (s *seats) assign(r replica.Rank, o *offering, n replica.NodeName) {
	o.node = n
	s.count(r, o, 1)
}

// release takes a rank's offer back, if it has one.
func (s *seats) release(r replica.Rank, o *offering) {
	s.count(r, o, -1)
	o.node = ""
}

func (s *seats) count(r replica.Rank, o *offering, by int) {
	b := s.berths[o.node]
	if b == nil {
		return
	}
	if !s.starts(o.node, r) {
		b.left -= by
		s.list(b)
	}
	if s.placed && s.of.known.job.Vacant(r) {
		s.crowd(b, s.of.known.job.Layout.Groups[r], by)
	}
}

// crowd counts a rank of a group on a node.
func (s *seats) crowd(b *berth, g replica.GroupID, by int) {
	b.load += by
	on := crowd{g, b.id}
	was := s.shared[on]
	s.shared[on] = was + by
	if (was == 0) == (was+by == 0) {
		return
	}
	for _, id := range b.domains {
		if id != 0 {
			s.shared[crowd{g, id}] += by
		}
	}
}

// place counts the ranks that run, or are about to, by group, node and failure domain.
func (s *seats) place() {
	if s.placed {
		return
	}
	s.placed, s.shared, s.domains = true, make(map[crowd]int), make(map[domain]int32)
	for n, b := range s.berths {
		b.id = s.name(domain{values: [len(place.Harms)]string{string(n)}}) // the empty set: the node itself
		labels := s.in.Nodes[n].Labels
		for set := 1; set < len(b.domains); set++ {
			if d, all := domainOf(set, labels); all {
				b.domains[set] = s.name(d)
			}
		}
	}
	for m, c := range s.of.known.job.Ranks {
		rank, on := replica.Rank(m), c.Node
		if s.of.known.job.Vacant(rank) {
			o := s.of.offers[rank]
			if o == nil || o.node == "" {
				continue
			}
			on = o.node // where it is about to be
		}
		if b := s.berths[on]; b != nil {
			s.crowd(b, s.of.known.job.Layout.Groups[m], 1)
		}
	}
}

// name numbers a failure domain, from 1.
func (s *seats) name(d domain) int32 {
	id, known := s.domains[d]
	if !known {
		id = int32(len(s.domains) + 1)
		s.domains[d] = id
	}
	return id
}

// domainOf is the failure domain of a set of labels; false where one of them is missing.
func domainOf(set int, labels map[string]string) (d domain, all bool) {
	d.set = set
	for i, h := range place.Harms {
		if set&(1<<i) == 0 {
			continue
		}
		if d.values[i] = labels[h.Label]; d.values[i] == "" {
			return d, false
		}
	}
	return d, true
}

// best picks the place for a rank among the open berths, or those of spares too; but those that are out.
func (s *seats) best(r replica.Rank, spares bool, out func(replica.NodeName) bool) (replica.NodeName, bool) {
	lists := s.open[:1]
	if spares {
		lists = s.open[:]
	}
	group := s.of.known.job.Layout.Groups[r]
	weight := place.NewWeigher(s.of.known.job.ID, replica.OfRank(r))
	var best seat
	found := false
	for _, list := range lists {
		if len(list) > 0 {
			s.place()
		}
		s.looks += len(list)
		for _, b := range list {
			if out(b.name) {
				continue
			}
			p := seat{node: b.name, shared: s.harm(b, group), class: b.class(s.of.known.job, group), load: b.load}
			crude := 1
			if found {
				crude = p.cruder(best)
			}
			if crude < 0 {
				continue
			}
			if p.weight = weight.Of(b.name); crude > 0 || p.weight > best.weight || p.weight == best.weight && p.node > best.node {
				best, found = p, true
			}
		}
	}
	return best.node, found
}

// harm is the worst that a place on a node would share with the others of a group.
func (s *seats) harm(b *berth, g replica.GroupID) int {
	if s.shared[crowd{g, b.id}] > 0 {
		return 8 // one node is worse than any label
	}
	for set := len(b.domains) - 1; set > 0; set-- { // a set's number is its harm
		if id := b.domains[set]; id != 0 && s.shared[crowd{g, id}] > 0 {
			return set
		}
	}
	return 0
}

// class is 2 for a spare that holds the group's shard, 1 for a spare, 0 for any other.
func (b *berth) class(job *plan.Record, g replica.GroupID) int {
	if !b.report.Spare {
		return 0
	}
	if b.shards == nil {
		b.shards = make(map[replica.GroupID]bool)
		for _, h := range b.report.Parts {
			if h.Part.Kind == replica.ReplicatedPart && h.Generation == job.Committed {
				b.shards[replica.GroupID(h.Part.Index)] = true
			}
		}
	}
	if b.shards[g] {
		return 2
	}
	return 1
}

// seat is a node as the place for a rank.
type seat struct {
	node   replica.NodeName
	shared int // failure domains in common with the rest of its group
	class  int // 2: a spare that holds the shard, 1: a spare, 0: any
	load   int // ranks of the job that it runs
	weight uint64
}

// cruder compares places by all but their weights, which cost the most: above 0, s is better.
func (s seat) cruder(o seat) int {
	return cmp.Or(cmp.Compare(o.shared, s.shared), cmp.Compare(s.class, o.class), cmp.Compare(o.load, s.load))
}
