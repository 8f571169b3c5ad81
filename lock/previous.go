package lock

import (
	"slices"

	"github.com/replicad/replicad/replica"
)

// What was committed before a Resume with too few copies (protocol section 6, Resume): the loss of one node may take the generation
// that the job has resumed at, and must then not cost more than going back to that one.

// safer is what a Resume at the plan's generation, with these holders, keeps of what was committed before: nil where every part has
// its copies, or where no earlier generation lies on more nodes. Of two earlier ones the one on more nodes stays.
func safer(j *replica.Job, nodes map[replica.NodeName]replica.Node, lineage replica.Lineage, parts []replica.PartRoot) *replica.Earlier {
	least := fewest(parts, func(replica.Holder) bool { return true })
	if least >= j.Options.MinCopies || j.Growth != nil { // what was committed before a growth is laid out otherwise
		return nil
	}
	here := func(h replica.Holder) bool {
		return nodes[h.Node].Incarnation == h.Incarnation && !HolderGone(j, h) && !slices.Contains(j.Proved, h)
	}
	var best *replica.Earlier
	for _, e := range []*replica.Earlier{{Generation: j.Committed, Parts: j.Parts}, j.Previous} {
		if e == nil || e.Generation.IsZero() || e.Generation == j.Plan.Generation || !lineage.Valid(e.Generation) || slices.Contains(j.Condemned, e.Generation) {
			continue
		}
		if n := fewest(e.Parts, here); n > least {
			best, least = e, n
		}
	}
	return best
}

// fewest is on how many nodes that part lies that lies on the fewest.
func fewest(parts []replica.PartRoot, here func(replica.Holder) bool) int {
	least := 0
	for i, p := range parts {
		n := 0
		for _, h := range p.Holders {
			if here(h) {
				n++
			}
		}
		if i == 0 || n < least {
			least = n
		}
	}
	return least
}

// spread records that every part of what the job has resumed at lies on as many nodes as a commit would need: what was committed
// before need not stay.
func spread(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.Resume) (bool, error) {
	if j.Previous == nil {
		return false, nil
	}
	if c.Copies < j.Copies {
		return false, refuse(Incomplete, "%v lies on %d nodes: a commit needs %d", j.Committed, c.Copies, j.Copies)
	}
	parts, err := checkParts(j, nodes, c.Parts, c.Copies)
	if err != nil {
		return false, err
	}
	if err := planned(j, parts); err != nil {
		return false, err
	}
	j.Parts, j.Previous = parts, nil
	return true, nil
}
