package durable

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// A daemon is needed until what is committed is on disk where without it the others lack a part, or can't agree on anything.
func TestNeededDaemons(t *testing.T) {
	holders := func(nodes ...replica.NodeName) (out []replica.Holder) {
		for _, n := range nodes {
			out = append(out, replica.Holder{Node: n, Incarnation: 1})
		}
		return out
	}
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Options.DurableEvery = 100
		j.Parts = []replica.PartRoot{{Part: replica.OfGroup(0), Holders: holders("n1", "n2")}, {Part: replica.OfRank(0), Holders: holders("n1", "n2")}, {Part: replica.OfRank(1), Holders: holders("n2", "n3")}}
	})
	written := fixture.Changed(job, func(j *replica.Job) { j.Durable = j.Committed })
	type names = []replica.NodeName
	three := names{"n1", "n2", "n3"}
	for _, tc := range []struct {
		name                       string
		job                        *replica.Job
		voters, there, leaves, ask names
		want                       names // of those that ask, who is needed
		asked                      names // at the same time
	}{
		{"one of three restarts", job, three, three, nil, three, nil, nil},
		{"it is on disk", written, three, three, names{"n1"}, three, nil, nil},
		{"the next of three: no majority is left", job, three, three, names{"n1"}, names{"n2", "n3"}, names{"n2", "n3"}, nil},
		{"two copies on two nodes", job, names{"n3"}, three, names{"n1"}, names{"n2", "n3"}, names{"n2", "n3"}, nil},
		{"it holds nothing alone, and does not vote", job, names{"n3"}, names{"n1", "n2", "n3", "n4"}, nil, names{"n4", "n1"}, nil, nil},
		{"the only voter", job, names{"n1"}, three, nil, names{"n1"}, names{"n1"}, nil},
		{"a part is lost already: nobody can write it", job, names{"n3"}, names{"n3"}, nil, names{"n3"}, nil, nil},
		{"a holder is away", job, names{"n3"}, names{"n2", "n3"}, nil, names{"n2"}, names{"n2"}, nil},
		{"all three are asked at once", job, three, three, nil, three, three, three},
		{"the two of three that would stay have to agree", job, three, three, nil, names{"n1", "n2"}, names{"n1", "n2"}, names{"n1", "n2"}},
		{"the one that would stay lacks a part", job, names{"n3"}, three, nil, names{"n1", "n2"}, names{"n1", "n2"}, names{"n1", "n2"}},
		{"those that are asked hold a part together", job, names{"n3"}, names{"n1", "n2", "n3", "n4"}, nil, names{"n1", "n2", "n4"}, names{"n1", "n2", "n4"}, names{"n1", "n2", "n4"}},
	} {
		c := Cluster{Voters: tc.voters, Linked: func(n replica.NodeName) bool { return slices.Contains(tc.there, n) }, Leaves: func(n replica.NodeName) bool { return slices.Contains(tc.leaves, n) },
			Asked: func(n replica.NodeName) bool { return slices.Contains(tc.asked, n) },
			Life:  func(replica.NodeName) replica.NodeIncarnation { return 1 }}
		var needed names
		for _, n := range tc.ask {
			if c.Needed(tc.job, n) {
				needed = append(needed, n)
			}
		}
		if !slices.Equal(needed, tc.want) {
			t.Errorf("%s: %v are needed, want %v", tc.name, needed, tc.want)
		}
	}
}

// TestWhoMayGoInAnyOrder: of three and four nodes, wherever the parts lie and whoever votes, each set is asked to end in each order. Nobody is let go
// whom the rest lacks: who was not asked holds every part then, and is a majority. Of nodes that are all asked none goes before the write.
func TestWhoMayGoInAnyOrder(t *testing.T) {
	plays, gone := 0, 0
	for nodes := 3; nodes <= 4; nodes++ {
		for voters := 1; voters <= nodes; voters += 2 {
			for held := 0; held < 1<<(2*nodes); held++ {
				if held%(1<<nodes) == 0 || held>>nodes == 0 {
					continue // a part is lost: nothing can be written
				}
				for asked := 1; asked < 1<<nodes; asked++ {
					plays++
					gone += goesInOrder(t, nodes, voters, [2]int{held % (1 << nodes), held >> nodes}, asked, plays)
				}
			}
		}
	}
	if gone == 0 || plays < 7000 {
		t.Errorf("of %d plays daemons went in %d", plays, gone)
	}
}

// goesInOrder has daemons ask one after the other, from another one each time, and tells how many went.
func goesInOrder(t *testing.T, nodes, voters int, held [2]int, asked, turn int) (went int) {
	name := func(i int) replica.NodeName { return replica.NodeName('a' + rune(i)) }
	of := func(n replica.NodeName) int { return 1 << (n[0] - 'a') }
	var parts []replica.PartRoot
	for p, set := range held {
		part := replica.PartRoot{Part: replica.OfRank(replica.Rank(p))}
		for i := range nodes {
			if set&(1<<i) != 0 {
				part.Holders = append(part.Holders, replica.Holder{Node: name(i), Incarnation: 1})
			}
		}
		parts = append(parts, part)
	}
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Options.DurableEvery, j.Parts = 100, parts })
	come, left := 0, 0
	c := Cluster{Linked: func(replica.NodeName) bool { return true }, Leaves: func(n replica.NodeName) bool { return left&of(n) != 0 },
		Asked: func(n replica.NodeName) bool { return come&of(n) != 0 }, Life: func(replica.NodeName) replica.NodeIncarnation { return 1 }}
	for i := range voters {
		c.Voters = append(c.Voters, name(i))
	}
	if turn%2 == 0 { // their words are there before the first is answered
		come = asked
	}
	for k := range nodes {
		i := (k + turn) % nodes
		if asked&(1<<i) == 0 {
			continue
		}
		come |= 1 << i
		if !c.Needed(job, name(i)) {
			left |= 1 << i
			went++
		}
	}
	if why := c.Lacks(job); why != "" {
		t.Errorf("%d nodes, %d voters, parts on %b, asked %b in turn %d: %b left, and %s", nodes, voters, held, asked, turn, left, why)
	}
	if why := c.lacks(job, func(n replica.NodeName) bool { return come&of(n) == 0 }); turn%2 == 0 && left != 0 && why != "" {
		t.Errorf("%d nodes, %d voters, parts on %b, asked %b in turn %d: %b left for those that stay, and %s", nodes, voters, held, asked, turn, left, why)
	}
	return went
}

// Who writes a part of what nothing newer follows is waited for, whoever else could.
func TestWritersOfTheLastWrite(t *testing.T) {
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Writer = &replica.DurableWrite{Shards: []replica.Shard{{Part: replica.OfGroup(0), Node: "n2"}}}
	})
	stopped := fixture.Changed(job, func(j *replica.Job) { j.Stop = &replica.Stop{} })
	for _, tc := range []struct {
		job  *replica.Job
		node replica.NodeName
		ends bool
		want bool
	}{{job, "n2", false, false}, {job, "n2", true, true}, {stopped, "n2", false, true}, {stopped, "n1", false, false}} {
		if got := Last(tc.job, tc.node, tc.ends); got != tc.want {
			t.Errorf("node %s, stopped %v, ends %v: %v", tc.node, tc.job.Stop != nil, tc.ends, got)
		}
	}
}
