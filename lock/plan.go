package lock

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/replicad/replicad/replica"
)

// applyPlan creates the plan's epoch (protocol section 6, Plan): the next unused one after a closed epoch, or, for an
// opening, the one that Begin minted. A plan that cites any but the job's last change was made on another state and is
// refused, and so is a second plan for an epoch.
func applyPlan(j *replica.Job, p replica.Plan) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if p.Epoch == j.Epoch && j.Plan != nil {
		if reflect.DeepEqual(clonePlan(p), *j.Plan) {
			return false, nil
		}
		return false, refuse(Conflict, "plan for epoch %d of job %s: it has one already", p.Epoch, j.Name)
	}
	if err := notStopped(j, fmt.Sprintf("plan for epoch %d", p.Epoch)); err != nil {
		return false, err
	}
	if err := planPhase(j, p); err != nil {
		return false, err
	}
	if p.Cites != j.LastIndex {
		return false, refuse(Stale, "plan for epoch %d cites entry %d: entry %d has changed job %s since", p.Epoch, p.Cites, j.LastIndex, j.Name)
	}
	if err := planGeneration(j, p); err != nil {
		return false, err
	}
	if err := planLayout(j, p); err != nil {
		return false, err
	}
	if err := planSources(j, p); err != nil {
		return false, err
	}
	p = clonePlan(p)
	j.Epoch, j.Phase, j.Plan = p.Epoch, replica.Planned, &p
	if !p.Layout.Equal(j.Layout) {
		j.Layout, j.Ranks = p.Layout, p.Ranks
	}
	j.Mirrors, j.GroupMirrors = padded(p.Mirrors, len(j.Ranks)), padded(p.GroupMirrors, len(j.GroupGeometry))
	return true, nil
}

func planPhase(j *replica.Job, p replica.Plan) error {
	want := j.Epoch + 1
	if j.Phase == replica.Opening {
		want = j.Epoch
	}
	switch {
	case p.Epoch < want || p.Epoch == j.Epoch && j.ClosedEpoch >= j.Epoch:
		return refuse(Stale, "plan for epoch %d: epoch %d of job %s is the newest, %d is closed", p.Epoch, j.Epoch, j.Name, j.ClosedEpoch)
	case j.Phase != replica.Closed && j.Phase != replica.Opening:
		return refuse(Conflict, "plan for epoch %d: job %s is %v, epoch %d is not closed", p.Epoch, j.Name, j.Phase, j.Epoch)
	case p.Epoch > want || p.Epoch > replica.MaxEpoch:
		return refuse(NotYet, "plan for epoch %d: the next of job %s is %d", p.Epoch, j.Name, want)
	case p.Initial && j.Phase != replica.Opening:
		return refuse(Invalid, "plan for epoch %d is initial, but job %s is %v", p.Epoch, j.Name, j.Phase)
	}
	return nil
}

// planGeneration checks that the plan resumes at a generation of this history that is neither condemned nor rests on a
// dispute. For (p, init) of an opening exactly that generation is eligible (protocol section 5.4).
func planGeneration(j *replica.Job, p replica.Plan) error {
	g := p.Generation
	switch {
	case j.Growth != nil && (!p.Initial || g != grownAt(j)):
		return refuse(Invalid, "plan for epoch %d: generation %v, but job %s grows: want %v, which its ranks seal in this epoch", p.Epoch, g, j.Name, grownAt(j))
	case p.Initial && (g.Epoch != p.Epoch || len(j.Lineage) != 0 && j.Growth == nil):
		return refuse(Invalid, "initial plan for epoch %d: generation %v, lineage %v: want one sealed in this epoch, before any was opened", p.Epoch, g, j.Lineage)
	case p.Initial && j.Growth == nil && j.From != nil && g.Step != j.Start():
		return refuse(Invalid, "initial plan for epoch %d: generation %v, but job %s begins at step %d", p.Epoch, g, j.Name, j.Start())
	case !p.Initial && !j.Lineage.Valid(g):
		return refuse(Stale, "plan for epoch %d: generation %v is not of job %s's history %v", p.Epoch, g, j.Name, j.Lineage)
	case slices.Contains(j.Condemned, g):
		return refuse(Conflict, "plan for epoch %d: generation %v is condemned", p.Epoch, g)
	case g.Epoch < j.Grown:
		return refuse(Conflict, "plan for epoch %d: generation %v is from before the job grew in epoch %d: its ranks have other regions now", p.Epoch, g, j.Grown)
	case g.Step > replica.MaxStep:
		return refuse(Invalid, "plan for epoch %d: step %d is above %d", p.Epoch, g.Step, replica.MaxStep)
	}
	if d, ok := disputedAt(j, g.Step); ok {
		return refuse(Conflict, "plan for epoch %d: generation %v rests on %v of group %d, which is disputed", p.Epoch, g, d.Generation, d.Group)
	}
	return nil
}

// planLayout checks whom the plan is for: every rank at its present claim, none of them dead, silent or quarantined. A job
// that allows it may go on with fewer ranks, each one a present claim.
func planLayout(j *replica.Job, p replica.Plan) error {
	if err := p.Layout.Check(); err != nil {
		return refuse(Invalid, "plan for epoch %d: %v", p.Epoch, err)
	}
	same := p.Layout.Equal(j.Layout)
	if !same && (!j.Options.AllowShrink || p.Layout.World >= j.Layout.World || p.Layout.NumGroups() != len(j.GroupGeometry)) {
		return refuse(Invalid, "plan for epoch %d: layout of %d ranks in %d groups instead of %d in %d: only a job with allow_shrink may go on with fewer ranks, and with all its groups", p.Epoch, p.Layout.World, p.Layout.NumGroups(), j.Layout.World, len(j.GroupGeometry))
	}
	if len(p.Ranks) != int(p.Layout.World) || len(p.Mirrors) != 0 && len(p.Mirrors) != len(p.Ranks) || len(p.GroupMirrors) != 0 && len(p.GroupMirrors) != len(j.GroupGeometry) {
		return refuse(Invalid, "plan for epoch %d: %d claims, mirrors of %d ranks and %d groups, for %d ranks in %d groups", p.Epoch, len(p.Ranks), len(p.Mirrors), len(p.GroupMirrors), p.Layout.World, len(j.GroupGeometry))
	}
	taken := map[replica.Incarnation]bool{}
	for r, c := range p.Ranks {
		was := r
		if !same {
			was = slices.IndexFunc(j.Ranks, func(o replica.Claimed) bool { return o.Incarnation == c.Incarnation })
		}
		switch {
		case c.Incarnation == 0:
			return refuse(Incomplete, "plan for epoch %d: nobody holds rank %d", p.Epoch, r)
		case was < 0 || !sameClaim(c, j.Ranks[was]) || taken[c.Incarnation]:
			return refuse(Stale, "plan for epoch %d: rank %d at incarnation %d on node %s is not a present claim", p.Epoch, r, c.Incarnation, c.Node)
		case ClaimFaulted(j, replica.Rank(was), c, true):
			return refuse(Conflict, "plan for epoch %d: incarnation %d of rank %d is dead or silent: it must be claimed anew", p.Epoch, c.Incarnation, r)
		case slices.Contains(j.Quarantined, c.Node):
			return refuse(Conflict, "plan for epoch %d: rank %d is on node %s, which is quarantined", p.Epoch, r, c.Node)
		case len(p.Mirrors) != 0 && slices.Contains(p.Mirrors[r], c.Node):
			return refuse(Invalid, "plan for epoch %d: node %s would mirror rank %d, which it runs: a mirror is never on the rank's own node", p.Epoch, c.Node, r)
		}
		taken[c.Incarnation] = true
	}
	return nil
}

// sameClaim compares whom two claims name; the nonce only recognises a repeated command.
func sameClaim(a, b replica.Claimed) bool {
	a.Nonce, b.Nonce = 0, 0
	return a == b
}

func planSources(j *replica.Job, p replica.Plan) error {
	seen := make(map[replica.Part]bool, len(p.Sources))
	for _, s := range p.Sources {
		switch {
		case !isPart(s.Part, len(j.GroupGeometry), len(p.Ranks)) || seen[s.Part]:
			return refuse(Invalid, "plan for epoch %d: source of %v: want each group and each rank once", p.Epoch, s.Part)
		case s.Root.IsZero():
			return refuse(Invalid, "plan for epoch %d: %v has no root", p.Epoch, s.Part)
		case s.Tier < replica.OwnRAM || s.Tier > replica.Disk || (s.Tier == replica.Disk) != (len(s.Holders) == 0):
			return refuse(Invalid, "plan for epoch %d: %v from tier %d with %d holders: RAM needs a holder, disk has none", p.Epoch, s.Part, s.Tier, len(s.Holders))
		}
		for _, h := range s.Holders {
			if HolderGone(j, h) {
				return refuse(Conflict, "plan for epoch %d: %v from node %s (incarnation %d), which is dead or silent", p.Epoch, s.Part, h.Node, h.Incarnation)
			}
		}
		seen[s.Part] = true
	}
	if want := len(j.GroupGeometry) + len(p.Ranks); len(seen) != want {
		return refuse(Incomplete, "plan for epoch %d: %d sources for %d parts", p.Epoch, len(seen), want)
	}
	return nil
}

// resume opens the planned epoch and commits its position; it is checked like a commit, against the roots that the plan
// fixed (protocol section 6, Resume). What it finds of copies is recorded: fewer than min_copies is degraded.
func resume(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.Resume) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if c.Epoch == j.Epoch && j.Phase == replica.Open {
		if c.Spread {
			return spread(j, nodes, c)
		}
		return false, nil
	}
	if err := cites(j, "resume", c.Epoch); err != nil {
		return false, err
	}
	switch {
	case j.ClosedEpoch >= c.Epoch:
		return false, refuse(Stale, "resume epoch %d: it was closed", c.Epoch)
	case j.Phase != replica.Planned || c.Spread:
		return false, refuse(NotYet, "resume epoch %d: job %s is %v, no plan was applied", c.Epoch, j.Name, j.Phase)
	case c.Copies < 1 || c.Copies > j.Options.MinCopies:
		return false, refuse(Invalid, "resume epoch %d with %d copies: want 1 to min_copies, %d", c.Epoch, c.Copies, j.Options.MinCopies)
	}
	parts, err := checkParts(j, nodes, c.Parts, c.Copies)
	if err != nil {
		return false, err
	}
	if err := planned(j, parts); err != nil {
		return false, err
	}
	lineage, ok := j.Lineage.Open(j.Epoch, j.Plan.Generation.Step)
	if !ok {
		return false, refuse(Stale, "resume epoch %d: epoch %d was opened", c.Epoch, j.Lineage.Last().Epoch)
	}
	j.Previous = safer(j, nodes, lineage, parts)
	if j.Growth != nil {
		j.Growth, j.Grown = nil, j.Epoch
	}
	j.Phase, j.Lineage, j.Faults, j.OpenedWith = replica.Open, lineage, nil, j.NextIncarnation
	j.Position, j.Former = replica.Position{Epoch: j.Epoch, Step: j.Plan.Generation.Step}, 0
	j.Committed, j.Parts, j.Copies, j.Degraded = j.Plan.Generation, parts, c.Copies, c.Copies < j.Options.MinCopies
	j.Proved = stillRecorded(j)
	if j.Writer != nil && (!lineage.Valid(j.Writer.Generation) || j.Writer.Generation.Epoch < j.Grown) { // its marker would name regions that it has not
		j.Writer = nil
	}
	return true, nil
}

// planned refuses roots that are not those of the plan.
func planned(j *replica.Job, parts []replica.PartRoot) error {
	want := make(map[replica.Part]replica.Digest, len(j.Plan.Sources))
	for _, s := range j.Plan.Sources {
		want[s.Part] = s.Root
	}
	for _, p := range parts {
		if want[p.Part] != p.Root {
			return refuse(Conflict, "resume epoch %d: %v was loaded with root %v, the plan says %v", j.Epoch, p.Part, p.Root, want[p.Part])
		}
	}
	return nil
}

func clonePlan(p replica.Plan) replica.Plan {
	p.Layout = cloneLayout(p.Layout)
	p.Ranks = slices.Clone(p.Ranks)
	p.Mirrors, p.GroupMirrors = cloneNames(p.Mirrors), cloneNames(p.GroupMirrors)
	p.Sources = slices.Clone(p.Sources)
	for i := range p.Sources {
		p.Sources[i].Holders = slices.Clone(p.Sources[i].Holders)
	}
	return p
}

func cloneNames(lists [][]replica.NodeName) [][]replica.NodeName {
	lists = slices.Clone(lists)
	for i := range lists {
		lists[i] = slices.Clone(lists[i])
	}
	return lists
}

// padded is a copy with one list for each of n.
func padded(lists [][]replica.NodeName, n int) [][]replica.NodeName {
	out := make([][]replica.NodeName, n)
	copy(out, cloneNames(lists))
	return out
}
