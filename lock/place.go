package lock

import (
	"slices"

	"github.com/replicad/replicad/replica"
)

// setMirrors moves mirrors while the job trains; in a recovery the plan does.
func setMirrors(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.SetMirrors) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if j.Phase != replica.Open {
		return false, refuse(NotYet, "mirrors of job %s: it is %v: the plan places them", j.Name, j.Phase)
	}
	if len(c.Mirrors) != len(j.Ranks) || len(c.GroupMirrors) != 0 && len(c.GroupMirrors) != len(j.GroupGeometry) {
		return false, refuse(Invalid, "mirrors of %d ranks and %d groups: job %s has %d and %d", len(c.Mirrors), len(c.GroupMirrors), j.Name, len(j.Ranks), len(j.GroupGeometry))
	}
	groups := padded(c.GroupMirrors, len(j.GroupGeometry))
	for i, list := range slices.Concat(c.Mirrors, groups) {
		for k, n := range list {
			if err := checkHolder(j, nodes, replica.Holder{Node: n, Incarnation: nodes[n].Incarnation}); err != nil {
				return false, err
			}
			if i < len(j.Ranks) && j.Ranks[i].Node == n {
				return false, refuse(Invalid, "node %s would mirror rank %d, which it runs: a mirror is never on the rank's own node", n, i)
			}
			if slices.Contains(list[:k], n) {
				return false, refuse(Invalid, "node %s is named twice among one part's mirrors", n)
			}
		}
	}
	same := func(a, b []replica.NodeName) bool { return slices.Equal(a, b) }
	if slices.EqualFunc(c.Mirrors, j.Mirrors, same) && slices.EqualFunc(groups, j.GroupMirrors, same) {
		return false, nil
	}
	j.Mirrors, j.GroupMirrors = cloneNames(c.Mirrors), groups
	return true, nil
}

// quarantine keeps a node out of a job until it is cleared: it gets no rank and no mirror, and its pins don't count. What it holds
// serves: a plan may name it as a source.
func quarantine(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.Quarantine) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if err := replica.CheckName(string(c.Node)); err != nil {
		return false, refuse(Invalid, "quarantine: %v", err)
	}
	at, in := slices.BinarySearch(j.Quarantined, c.Node)
	switch {
	case in != c.Clear:
		return false, nil
	case c.Clear:
		j.Quarantined = slices.Delete(slices.Clone(j.Quarantined), at, at+1)
		// A drain that is taken back speaks against the node no more; its fault would until the next Resume, which may wait for the node.
		j.Faults = slices.DeleteFunc(slices.Clone(j.Faults), func(f replica.Fault) bool { return f.Kind == replica.Drain && f.Node == c.Node })
	default:
		if j.Growth != nil && slices.ContainsFunc(j.Ranks, func(r replica.Claimed) bool { return r.Node == c.Node }) {
			closeEpoch(j, nodes) // a growth keeps its claims, and no plan may name one of such a node
		}
		j.Quarantined = slices.Insert(slices.Clone(j.Quarantined), at, c.Node)
		dropMirror(j, c.Node)
	}
	return true, nil
}

// proveLost records that a life of a node's memory is gone for good: silence is no proof, this is (protocol section 6).
func proveLost(j *replica.Job, c replica.ProveLost) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if c.Holder.Node == "" || c.Holder.Incarnation == 0 {
		return false, refuse(Invalid, "proof of loss names node %q, incarnation %d: want both", c.Holder.Node, c.Holder.Incarnation)
	}
	return addProved(j, c.Holder), nil
}

// Cadence is how many steps lie between two generations of a job.
func Cadence(j *replica.Job) replica.Step { return max(j.Options.Cadence, 1) }

// LastDue is the last step up to one that is to be committed at all; the job's position, where none is to come.
func LastDue(j *replica.Job, upTo replica.Step) replica.Step {
	c := Cadence(j)
	return max(upTo/c*c, j.Position.Step)
}

// NextDue is the first step after s at which a generation is due: a multiple of the cadence.
func NextDue(j *replica.Job, s replica.Step) replica.Step {
	c := Cadence(j)
	return (s/c + 1) * c
}

// beginDurable names a committed generation to write to the durable tier, who writes each part, and who writes the commit
// marker (protocol section 6). Only what is committed now can be named: of an older one this log has no roots.
func beginDurable(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.BeginDurable) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	w := c.Write
	if j.Writer != nil {
		if j.Writer.Generation == w.Generation && j.Writer.Writer == w.Writer && slices.Equal(j.Writer.Shards, w.Shards) {
			return false, nil
		}
		return false, refuse(Conflict, "durable write of %v: node %s is writing %v", w.Generation, j.Writer.Writer, j.Writer.Generation)
	}
	switch {
	case j.Phase != replica.Open && j.Phase != replica.Closed:
		return false, refuse(NotYet, "durable write of %v: job %s is %v", w.Generation, j.Name, j.Phase)
	case w.Generation != j.Committed || w.Position != j.Position:
		return false, refuse(Stale, "durable write of %v at %v: job %s has committed %v at %v", w.Generation, w.Position, j.Name, j.Committed, j.Position)
	case w.Generation == j.Durable:
		return false, refuse(Stale, "durable write of %v: it has its commit marker", w.Generation)
	case len(w.Shards) != len(j.Parts):
		return false, refuse(Incomplete, "durable write of %v: %d shards for %d parts", w.Generation, len(w.Shards), len(j.Parts))
	}
	if _, ok := nodes[w.Writer]; !ok {
		return false, refuse(Unknown, "durable write of %v: writer %s is not registered", w.Generation, w.Writer)
	}
	byPart := make(map[replica.Part]replica.Shard, len(w.Shards))
	for _, s := range w.Shards {
		byPart[s.Part] = s
	}
	for _, p := range j.Parts {
		s, ok := byPart[p.Part]
		if !ok || s.Root != p.Root || !slices.ContainsFunc(p.Holders, func(h replica.Holder) bool { return h.Node == s.Node }) {
			return false, refuse(Conflict, "durable write of %v: %v by node %s with root %v: want root %v and one of its holders", w.Generation, p.Part, s.Node, s.Root, p.Root)
		}
	}
	w.Shards = slices.Clone(w.Shards)
	write(j, w)
	return true, nil
}

// write makes a durable write the one under way.
func write(j *replica.Job, w replica.DurableWrite) {
	j.Writes++
	w.Number = j.Writes
	j.Writer = &w
}

// endDurable ends a durable write, also of a job that has ended: its last state is worth keeping.
func endDurable(j *replica.Job, c replica.EndDurable) (bool, error) {
	if j.Writer == nil || j.Writer.Generation != c.Generation || c.Number != 0 && j.Writer.Number != c.Number {
		if c.Generation == j.Durable && c.Done {
			return false, nil
		}
		return false, refuse(Stale, "end of the durable write of %v: none is under way", c.Generation)
	}
	if c.Done {
		j.Durable = c.Generation
	}
	j.Writer = nil
	strip(j)
	return true, nil
}
