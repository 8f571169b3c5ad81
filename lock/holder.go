package lock

import (
	"cmp"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// setHolder corrects the record of one part while the job runs. A recovery asks the nodes themselves: it needs no correction.
//
// Invariant: a node enters the record only where its word would count at a commit. A lost copy leaves it whatever else is held against the node.
func setHolder(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.SetHolder) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if j.Phase != replica.Open {
		return false, refuse(NotYet, "holder %s of %v: job %s is %v: the plan asks the nodes what they hold", c.Holder.Node, c.Part, j.Name, j.Phase)
	}
	parts := j.Parts
	switch earlier := j.Previous; {
	case c.Generation == j.Committed:
	case earlier != nil && c.Generation == earlier.Generation:
		parts = earlier.Parts
	default:
		return false, refuse(Stale, "holder %s of %v of %v: job %s has committed %v", c.Holder.Node, c.Part, c.Generation, j.Name, j.Committed)
	}
	at := slices.IndexFunc(parts, func(p replica.PartRoot) bool { return p.Part == c.Part && p.Root == c.Root })
	if at < 0 {
		return false, refuse(Conflict, "holder %s of %v of %v with root %v: no such part is recorded", c.Holder.Node, c.Part, c.Generation, c.Root)
	}
	if slices.Contains(parts[at].Holders, c.Holder) != c.Lost {
		return false, nil
	}
	holders := slices.DeleteFunc(slices.Clone(parts[at].Holders), func(h replica.Holder) bool { return h.Node == c.Holder.Node })
	if !c.Lost {
		if err := checkHolder(j, nodes, c.Holder); err != nil {
			return false, err
		}
		holders = append(holders, c.Holder)
		slices.SortFunc(holders, func(a, b replica.Holder) int {
			return cmp.Or(strings.Compare(string(a.Node), string(b.Node)), cmp.Compare(a.Incarnation, b.Incarnation))
		})
	}
	parts = slices.Clone(parts)
	parts[at].Holders = holders
	if c.Generation == j.Committed {
		j.Parts = parts
	} else {
		j.Previous = &replica.Earlier{Generation: c.Generation, Parts: parts}
	}
	j.Proved = stillRecorded(j)
	return true, nil
}
