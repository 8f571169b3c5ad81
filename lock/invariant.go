package lock

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Check tells how the state after an entry breaks what must hold of every state, beside the state before it. Nil: it holds. Builds with the
// race detector ask after every entry that a node applies; that costs time in proportion to the ranks of each job that the entry changed.
func Check(was, is View) error {
	for id, job := range is.Jobs {
		if err := checkClaims(job, is.Nodes); err != nil {
			return fmt.Errorf("job %q: %w", job.Name, err)
		}
		if err := checkJob(was.Jobs[id], job, is); err != nil {
			return fmt.Errorf("job %q: %w", job.Name, err)
		}
	}
	return nil
}

// checkClaims finds a claim that names a former life of its node though nothing speaks against it (nextLife).
func checkClaims(j *replica.Job, nodes map[replica.NodeName]replica.Node) error {
	if j.Phase == replica.Ended {
		return nil
	}
	for r, c := range j.Ranks {
		if n, known := nodes[c.Node]; known && c.Incarnation != 0 && c.NodeIncarnation != n.Incarnation && !ClaimFaulted(j, replica.Rank(r), c, true) {
			return fmt.Errorf("rank %d: incarnation %d is claimed for life %d of node %s, which has life %d", r, c.Incarnation, c.NodeIncarnation, c.Node, n.Incarnation)
		}
	}
	return nil
}

// checkJob holds a job after an entry against the job before it.
func checkJob(was, j *replica.Job, v View) error {
	switch {
	case was == nil || was == j:
		return nil
	case j.LastIndex != v.Index:
		return fmt.Errorf("last index %d", j.LastIndex)
	case j.Epoch < was.Epoch || j.ClosedEpoch < was.ClosedEpoch || j.ClosedEpoch > j.Epoch:
		return fmt.Errorf("epoch %d -> %d, closed %d -> %d", was.Epoch, j.Epoch, was.ClosedEpoch, j.ClosedEpoch)
	case j.NextIncarnation < was.NextIncarnation:
		return fmt.Errorf("incarnations fell from %d to %d", was.NextIncarnation, j.NextIncarnation)
	case was.Era != j.Era || was.Phase == replica.Ended && j.Phase != replica.Ended:
		return nil // a recovered quorum, or the job's durable tier, starts another history above these numbers
	case j.Position.Epoch < was.Position.Epoch || j.Position.Epoch == was.Position.Epoch && j.Position.Step < was.Position.Step:
		return fmt.Errorf("position fell from %v to %v", was.Position, j.Position)
	case len(j.Lineage) < len(was.Lineage) || !slices.Equal(j.Lineage[:len(was.Lineage)], was.Lineage) || !rising(j.Lineage):
		return fmt.Errorf("lineage %v after %v", j.Lineage, was.Lineage)
	case (j.Phase == replica.Open || j.Phase == replica.Planned) != (j.Plan != nil):
		return fmt.Errorf("plan %v in phase %v", j.Plan, j.Phase)
	case (j.Phase == replica.Open || j.Phase == replica.Planned) && j.ClosedEpoch >= j.Epoch:
		return fmt.Errorf("%v, but epoch %d is closed", j.Phase, j.Epoch)
	case j.Phase == replica.Closed && j.ClosedEpoch != j.Epoch:
		return fmt.Errorf("closed, but epoch %d is not: %d", j.Epoch, j.ClosedEpoch)
	case j.Phase == replica.Open && j.Lineage.Last().Epoch != j.Epoch:
		return fmt.Errorf("open, but lineage %v ends before epoch %d", j.Lineage, j.Epoch)
	case j.Phase == replica.Open && j.Position.Epoch != j.Epoch:
		return fmt.Errorf("open at %v in epoch %d", j.Position, j.Epoch)
	case !j.Committed.IsZero() && !j.Lineage.Valid(j.Committed):
		return fmt.Errorf("committed %v is not of history %v", j.Committed, j.Lineage)
	case j.Phase != replica.Ended && (j.Degraded != (j.Copies < j.Options.MinCopies) || j.Copies < 1):
		return fmt.Errorf("%d copies, degraded %v", j.Copies, j.Degraded)
	}
	seen := map[replica.Incarnation]bool{}
	for r, c := range j.Ranks {
		if c.Incarnation > j.NextIncarnation || c.Incarnation != 0 && seen[c.Incarnation] || r < len(was.Ranks) && c.Incarnation < was.Ranks[r].Incarnation {
			return fmt.Errorf("rank %d: incarnation %d after %v, %d handed out", r, c.Incarnation, was.Ranks, j.NextIncarnation)
		}
		seen[c.Incarnation] = true
		if slices.Contains(j.Mirrors[r], c.Node) && c.Incarnation != 0 {
			return fmt.Errorf("rank %d is mirrored on its own node %s", r, c.Node)
		}
		if j.Phase == replica.Open && ClaimFaulted(j, replica.Rank(r), c, false) {
			return fmt.Errorf("open, though rank %d is at fault", r)
		}
	}
	if j.Position == was.Position {
		return nil
	}
	return complete(j, v)
}

// complete checks a new commit: every part once, on enough distinct nodes, each registered, none at fault or quarantined.
func complete(j *replica.Job, v View) error {
	if len(j.Parts) != len(j.GroupGeometry)+len(j.Ranks) {
		return fmt.Errorf("commit of %v with %d parts", j.Position, len(j.Parts))
	}
	for i, part := range allParts(j) {
		p := j.Parts[i]
		nodes := map[replica.NodeName]bool{}
		for _, h := range p.Holders {
			nodes[h.Node] = true
			if v.Nodes[h.Node].Incarnation != h.Incarnation || slices.Contains(j.Quarantined, h.Node) || HolderFaulted(j, h) {
				return fmt.Errorf("commit of %v counts %v on %v", j.Position, p.Part, h)
			}
		}
		if p.Part != part || len(nodes) < j.Copies {
			return fmt.Errorf("commit of %v: %v on %d nodes instead of %v on %d", j.Position, p.Part, len(nodes), part, j.Copies)
		}
	}
	return nil
}

// allParts are the parts of a whole generation, in the order in which a commit lists them.
func allParts(j *replica.Job) (out []replica.Part) {
	for g := range j.GroupGeometry {
		out = append(out, replica.OfGroup(replica.GroupID(g)))
	}
	for r := range j.Ranks {
		out = append(out, replica.OfRank(replica.Rank(r)))
	}
	return out
}
