package lock

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

func TestParting(t *testing.T) {
	group := func(g replica.GroupID, step replica.Step, rank replica.Rank, root byte) replica.Held {
		return replica.Held{Part: replica.OfGroup(g), Generation: replica.Generation{Epoch: 3, Step: step}, Root: replica.Digest{root}, Rank: rank}
	}
	mirror, made, old := group(0, 9, 1, 7), group(0, 9, 1, 7), group(0, 9, 1, 7)
	mirror.Mirror, made.DaemonMade, old.Generation.Epoch = true, true, 2
	job := func(open ...bool) *replica.Job {
		j := &replica.Job{Epoch: 3, Position: replica.Position{Epoch: 3, Step: 7}, Layout: replica.Layout{World: 4, Groups: []replica.GroupID{0, 0, 1, 1}}}
		for _, n := range []replica.NodeName{"a", "b", "a", "b"} {
			j.Ranks = append(j.Ranks, replica.Claimed{Node: n, Incarnation: 1})
		}
		j.Options.Nondeterministic = open
		return j
	}
	for _, c := range []struct {
		name string
		job  *replica.Job
		a, b []replica.Held
		want replica.Generation // zero: no dispute
		in   replica.GroupID
	}{
		{"agree", job(), []replica.Held{group(0, 9, 0, 1), group(1, 9, 2, 2)}, []replica.Held{group(0, 9, 1, 1), group(1, 9, 3, 2)}, replica.Generation{}, 0},
		{"differ", job(), []replica.Held{group(0, 9, 0, 1)}, []replica.Held{group(0, 9, 1, 7)}, replica.Generation{Epoch: 3, Step: 9}, 0},
		{"the second group", job(), []replica.Held{group(0, 9, 0, 1), group(1, 9, 2, 2)}, []replica.Held{group(0, 9, 1, 1), group(1, 9, 3, 7)}, replica.Generation{Epoch: 3, Step: 9}, 1},
		{"declared so", job(true), []replica.Held{group(0, 9, 0, 1)}, []replica.Held{group(0, 9, 1, 7)}, replica.Generation{}, 0},
		{"the newest of all, not of one", job(), []replica.Held{group(0, 8, 0, 1), group(0, 9, 0, 2)}, []replica.Held{group(0, 8, 1, 7)}, replica.Generation{Epoch: 3, Step: 8}, 0},
		{"an older one that was left behind", job(), []replica.Held{group(0, 8, 0, 1), group(0, 9, 0, 2)}, []replica.Held{group(0, 8, 1, 7), group(0, 9, 1, 2)}, replica.Generation{}, 0},
		{"committed", job(), []replica.Held{group(0, 7, 0, 1)}, []replica.Held{group(0, 7, 1, 7)}, replica.Generation{}, 0},
		{"one alone", job(), []replica.Held{group(0, 9, 0, 1)}, nil, replica.Generation{}, 0},
		{"a mirror", job(), []replica.Held{group(0, 9, 0, 1)}, []replica.Held{mirror}, replica.Generation{}, 0},
		{"in a dead rank's name", job(), []replica.Held{group(0, 9, 0, 1)}, []replica.Held{made}, replica.Generation{}, 0},
		{"of another epoch", job(), []replica.Held{group(0, 9, 0, 1)}, []replica.Held{old}, replica.Generation{}, 0},
		{"of another node", job(), []replica.Held{group(0, 9, 0, 1), group(0, 9, 1, 7)}, nil, replica.Generation{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Parting(c.job, map[replica.NodeName]replica.NodeReport{"a": {Parts: c.a}, "b": {Parts: c.b}})
			switch {
			case got == nil && !c.want.IsZero():
				t.Errorf("no dispute, want one of %v", c.want)
			case got != nil && (got.Dispute.Generation != c.want || got.Dispute.Group != c.in || got.Epoch != 3 || !slices.Equal(got.Dispute.Suspects, []replica.Rank{replica.Rank(2 * c.in), replica.Rank(2*c.in + 1)})):
				t.Errorf("%+v, want %v of group %d", *got, c.want, c.in)
			}
		})
	}
}
