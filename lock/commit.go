package lock

import (
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// commit says that a generation is complete on the whole job (protocol section 5.2): of the open epoch, above the last
// position, below any dispute, every part with copies(p) holders whose word counts. Duplicates are harmless; gaps are
// allowed.
func commit(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.Commit) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if c.Position == j.Position && c.Generation == j.Committed {
		return false, nil
	}
	if err := cites(j, "commit", c.Position.Epoch); err != nil {
		return false, err
	}
	switch {
	case j.ClosedEpoch >= c.Position.Epoch:
		return false, refuse(Stale, "commit of %v: epoch %d is closed: it accepts seals until its plan, but no commits", c.Position, c.Position.Epoch)
	case j.Phase != replica.Open:
		return false, refuse(NotYet, "commit of %v: job %s is %v", c.Position, j.Name, j.Phase)
	case c.Position.Step <= j.Position.Step:
		return false, refuse(Stale, "commit of %v: job %s is committed at %v", c.Position, j.Name, j.Position)
	case c.Generation != replica.Generation(c.Position) || c.Position.Step > replica.MaxStep:
		return false, refuse(Invalid, "commit of %v names generation %v: want the one sealed at that position", c.Position, c.Generation)
	case slices.Contains(j.Condemned, c.Generation):
		return false, refuse(Conflict, "commit of %v: it is condemned", c.Generation)
	}
	if d, ok := disputedAt(j, c.Position.Step); ok {
		return false, refuse(Conflict, "commit of %v: group %d is disputed at %v", c.Position, d.Group, d.Generation)
	}
	parts, err := checkParts(j, nodes, c.Parts, j.Copies)
	if err != nil {
		return false, err
	}
	j.Position, j.Committed, j.Parts, j.Previous = c.Position, c.Generation, parts, nil
	j.Proved = stillRecorded(j)
	if c.Write && j.Writer == nil {
		w := PlanShards(j, func(replica.NodeName) bool { return true }) // they have just answered
		w.Turns = c.Turns
		write(j, w)
	}
	return true, nil
}

// checkParts checks that every group and every rank is there once, each held on at least copies distinct nodes whose word
// counts; copies on one node count once. It returns them in order, holders sorted.
func checkParts(j *replica.Job, nodes map[replica.NodeName]replica.Node, parts []replica.PartRoot, copies int) ([]replica.PartRoot, error) {
	groups := len(j.GroupGeometry)
	if len(parts) != groups+len(j.Ranks) {
		return nil, refuse(Incomplete, "%d parts: want %d groups and %d ranks", len(parts), groups, len(j.Ranks))
	}
	out := make([]replica.PartRoot, len(parts))
	checked := map[replica.Holder]error{}
	for _, p := range parts {
		if !isPart(p.Part, groups, len(j.Ranks)) {
			return nil, refuse(Invalid, "%v is not a part of job %s", p.Part, j.Name)
		}
		at := int(p.Part.Index)
		if p.Part.Kind == replica.PrivatePart {
			at += groups
		}
		if p.Root.IsZero() || out[at].Holders != nil {
			return nil, refuse(Invalid, "%v has no root or comes twice", p.Part)
		}
		holders := slices.Clone(p.Holders)
		slices.SortFunc(holders, func(a, b replica.Holder) int { return strings.Compare(string(a.Node), string(b.Node)) })
		for i, h := range holders {
			if i > 0 && holders[i-1].Node == h.Node {
				return nil, refuse(Invalid, "%v: node %s is named twice", p.Part, h.Node)
			}
			err, known := checked[h]
			if !known {
				err = checkHolder(j, nodes, h)
				checked[h] = err
			}
			if err != nil {
				return nil, err
			}
		}
		if len(holders) < max(copies, 1) {
			return nil, refuse(Incomplete, "%v is held on %d nodes: want %d", p.Part, len(holders), max(copies, 1))
		}
		out[at] = replica.PartRoot{Part: p.Part, Root: p.Root, Holders: holders}
	}
	return out, nil
}

func isPart(p replica.Part, groups, ranks int) bool {
	return p.Kind == replica.ReplicatedPart && int64(p.Index) < int64(groups) || p.Kind == replica.PrivatePart && int64(p.Index) < int64(ranks)
}

// stillRecorded keeps the proofs about holders that the records still name.
func stillRecorded(j *replica.Job) []replica.Holder {
	var keep []replica.Holder
	for _, h := range j.Proved {
		if recorded(j, h) {
			keep = append(keep, h)
		}
	}
	return keep
}

// setCopies raises or lowers copies(p) (protocol section 5.2).
func setCopies(j *replica.Job, c replica.SetCopies) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if c.Copies < 1 || c.Copies > j.Options.MinCopies {
		return false, refuse(Invalid, "%d copies for job %s: want 1 to min_copies, %d", c.Copies, j.Name, j.Options.MinCopies)
	}
	if c.Copies == j.Copies {
		return false, nil
	}
	j.Copies, j.Degraded = c.Copies, c.Copies < j.Options.MinCopies
	return true, nil
}
