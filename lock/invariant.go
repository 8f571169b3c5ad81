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
	if err := checkShape(j); err != nil {
		return err
	}
	if err := checkGrowth(was, j); err != nil {
		return err
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

// checkShape: what is by rank or by group is there for each, what names an epoch or a generation names one that there is.
func checkShape(j *replica.Job) error {
	world := int(j.Layout.World)
	switch {
	case j.Phase == replica.Ended: // most of it is forgotten
		return nil
	case len(j.Layout.Groups) != world || len(j.Ranks) != world || len(j.Mirrors) != world:
		return fmt.Errorf("%d groups, %d ranks and %d mirrors for a world of %d", len(j.Layout.Groups), len(j.Ranks), len(j.Mirrors), world)
	case len(j.GroupMirrors) > len(j.GroupGeometry):
		return fmt.Errorf("mirrors of %d groups, of %d", len(j.GroupMirrors), len(j.GroupGeometry))
	case j.Naming != nil && (len(j.Naming) != world || j.Phase != replica.Opening && j.Phase != replica.Closed && j.Phase != replica.Ended):
		return fmt.Errorf("%d ranks name their groups in phase %v", len(j.Naming), j.Phase)
	case j.Plan != nil && (j.Plan.Epoch != j.Epoch || len(j.Plan.Ranks) != world):
		return fmt.Errorf("in epoch %d the plan of epoch %d, for %d ranks", j.Epoch, j.Plan.Epoch, len(j.Plan.Ranks))
	case j.OpenedWith > j.NextIncarnation:
		return fmt.Errorf("opened with incarnation %d, %d are handed out", j.OpenedWith, j.NextIncarnation)
	case j.Grown > j.Epoch:
		return fmt.Errorf("grown in epoch %d, in epoch %d", j.Grown, j.Epoch)
	case j.Phase == replica.Open && slices.Contains(j.Condemned, j.Committed):
		return fmt.Errorf("committed %v is condemned", j.Committed)
	case j.Previous != nil && j.Previous.Generation.Compare(j.Committed) >= 0:
		return fmt.Errorf("%v was committed before %v", j.Previous.Generation, j.Committed)
	case j.Writer != nil && (j.Writer.Number == 0 || j.Writer.Number > j.Writes):
		return fmt.Errorf("durable write %d of %d", j.Writer.Number, j.Writes)
	case j.Writer != nil && len(j.Writer.Shards) == 0:
		return fmt.Errorf("durable write %d of nothing", j.Writer.Number)
	case !j.Committed.IsZero() && j.Phase == replica.Open && len(j.Parts) == 0:
		return fmt.Errorf("committed %v has no parts", j.Committed)
	}
	for r, nodes := range j.Mirrors {
		if twiceNamed(nodes) {
			return fmt.Errorf("rank %d is mirrored twice on one of %v", r, nodes)
		}
	}
	for g, nodes := range j.GroupMirrors {
		if twiceNamed(nodes) {
			return fmt.Errorf("group %d is mirrored twice on one of %v", g, nodes)
		}
	}
	if twiceNamed(j.Quarantined) {
		return fmt.Errorf("a node is quarantined twice: %v", j.Quarantined)
	}
	for _, f := range j.Faults {
		if f.Epoch > j.Epoch {
			return fmt.Errorf("fault %v of epoch %d in epoch %d", f.Kind, f.Epoch, j.Epoch)
		}
	}
	for _, p := range j.Parts {
		if p.Root.IsZero() {
			return fmt.Errorf("committed %v has no root of %v", j.Committed, p.Part)
		}
	}
	return nil
}

func twiceNamed(nodes []replica.NodeName) bool {
	for i, n := range nodes {
		if slices.Contains(nodes[:i], n) {
			return true
		}
	}
	return false
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

// checkGrowth: a growth keeps its claims and what is committed; it ends by resuming, or by leaving nothing behind.
func checkGrowth(was, j *replica.Job) error {
	switch g := j.Growth; {
	case j.Phase == replica.Ended:
		return nil
	case g == nil && j.Phase == replica.Opening && !j.Committed.IsZero():
		return fmt.Errorf("opening, though %v is committed and nothing grows", j.Committed)
	case !j.Committed.IsZero() && j.Committed.Epoch < j.Grown:
		return fmt.Errorf("committed %v is from before the growth of epoch %d", j.Committed, j.Grown)
	case g != nil && (j.Phase != replica.Opening && j.Phase != replica.Planned || j.ClosedEpoch+1 != j.Epoch):
		return fmt.Errorf("%v in epoch %d, closed %d, and grows", j.Phase, j.Epoch, j.ClosedEpoch)
	case g != nil && (j.Committed.IsZero() || g.Step < j.Position.Step || len(g.Geometries) != len(j.GroupGeometry)):
		return fmt.Errorf("grows at step %d with %d geometries, committed at %v", g.Step, len(g.Geometries), j.Position)
	case g != nil && was.Growth == g && !sameProcesses(was.Ranks, j.Ranks):
		return fmt.Errorf("claims changed from %v to %v while the job grows", was.Ranks, j.Ranks)
	case g != nil || was.Growth == nil || was.Era != j.Era:
		return nil
	case j.Grown == was.Epoch && j.Phase == replica.Open && slices.Equal(j.GroupGeometry, was.GroupGeometry):
		return nil
	case j.Grown == was.Grown && j.Committed == was.Committed && slices.Equal(j.GroupGeometry, was.Growth.Geometries) && slices.Equal(j.Recipe, was.Growth.Recipe):
		return nil
	}
	return fmt.Errorf("the growth of epoch %d ended half done: %v, grown in %d, geometries %v", was.Epoch, j.Phase, j.Grown, j.GroupGeometry)
}

// sameProcesses tells whether claims differ at most by the life of a node, which goes on with its processes.
func sameProcesses(a, b []replica.Claimed) bool {
	return slices.EqualFunc(a, b, func(x, y replica.Claimed) bool { return x.Incarnation == y.Incarnation && x.Node == y.Node })
}
