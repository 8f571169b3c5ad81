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
	}{
		{"one of three restarts", job, three, three, nil, three, nil},
		{"it is on disk", written, three, three, names{"n1"}, three, nil},
		{"the next of three: no majority is left", job, three, three, names{"n1"}, names{"n2", "n3"}, names{"n2", "n3"}},
		{"two copies on two nodes", job, names{"n3"}, three, names{"n1"}, names{"n2", "n3"}, names{"n2", "n3"}},
		{"it holds nothing alone, and does not vote", job, names{"n3"}, names{"n1", "n2", "n3", "n4"}, nil, names{"n4", "n1"}, nil},
		{"the only voter", job, names{"n1"}, three, nil, names{"n1"}, names{"n1"}},
		{"a part is lost already: nobody can write it", job, names{"n3"}, names{"n3"}, nil, names{"n3"}, nil},
		{"a holder is away", job, names{"n3"}, names{"n2", "n3"}, nil, names{"n2"}, names{"n2"}},
	} {
		c := Cluster{Voters: tc.voters, Linked: func(n replica.NodeName) bool { return slices.Contains(tc.there, n) }, Leaves: func(n replica.NodeName) bool { return slices.Contains(tc.leaves, n) },
			Life: func(replica.NodeName) replica.NodeIncarnation { return 1 }}
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
