package recovery

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// A growth is decided in two phases. Each rank asks its node for it between two steps, and the node makes the new arena beside the present one:
// until all ranks have theirs nothing has changed, and a refusal costs nothing. Then one entry of the log changes the job (lock.grow), and a
// fault before it has resumed takes it back.

// growRate is what a rank's state takes at least to be made room for, sealed and mirrored, in bytes a second.
const growRate = 64 << 20

// growTries is how often a growth is proposed.
const growTries = 3

// asks is what this leader knows of the ranks that ask to grow. Soft, as all that a leader knows: their nodes tell the next one.
type asks struct {
	of      replica.Position // the step that they are of
	at      time.Duration    // when one of them last got on
	count   int
	ready   int
	failed  int    // tries to have the log decide
	why     string // the last of them failed
	refused map[replica.Rank]answered
}

// answered is a refusal. Invariant: what was refused is never decided, though reports still have it: the rank may have gone on.
type answered struct {
	ask  uint64
	node replica.NodeName
	why  string
	sent bool // since the node linked last
}

// linked has a node that has linked anew told again: what it was told may have gone down with its stream.
func (a *asks) linked(n replica.NodeName) {
	for r, was := range a.refused {
		if was.node == n {
			was.sent = false
			a.refused[r] = was
		}
	}
}

// growth is what the ranks ask for together.
type growth struct {
	ranks   []*replica.RankReport // that ask, in rising order
	missing []replica.Rank        // that do not, or whose nodes are away
	bytes   uint64                // of the largest rank
}

// growth gathers what the reports say of the open epoch, but for what was refused.
func (a *asks) growth(in *plan.Input) (g growth) {
	for r, rep := range in.Said() {
		rank := replica.Rank(r)
		if rep != nil && rep.Growth != nil && rep.Growth.Epoch == in.Job.Epoch && a.refused[rank].ask != rep.Growth.Ask {
			g.ranks, g.bytes = append(g.ranks, rep), max(g.bytes, rep.Growth.Bytes)
		} else {
			g.missing = append(g.missing, rank)
		}
	}
	return g
}

// answers are the refusals that no node has yet, or may have lost. Those that the nodes have passed on are forgotten.
func (a *asks) answers(in *plan.Input) (out []Effect) {
	for _, r := range slices.Sorted(maps.Keys(a.refused)) {
		was, rep := a.refused[r], in.Said()[r]
		switch {
		case rep == nil: // its node is away
		case rep.Growth == nil || rep.Growth.Ask != was.ask:
			delete(a.refused, r)
		case !was.sent:
			was.sent = true
			a.refused[r] = was
			out = append(out, RefuseGrowth{Node: was.node, Rank: r, Ask: was.ask, Why: was.why})
		}
	}
	return out
}

// learn takes in how far the ranks are: each that asks, and each whose node has the memory, gives the others their time anew.
func (a *asks) learn(g growth, now time.Duration) {
	of, ready := replica.Position{Epoch: g.ranks[0].Growth.Epoch, Step: g.ranks[0].Growth.Step}, 0
	for _, rep := range g.ranks {
		if rep.Growth.Prepared {
			ready++
		}
	}
	if a.count == 0 || a.of != of {
		*a = asks{of: of, at: now, refused: a.refused}
	}
	if len(g.ranks) > a.count || ready > a.ready {
		a.at = now
	}
	a.count, a.ready = len(g.ranks), ready
}

// denied says why a growth is refused, whatever time is left; empty: nothing speaks against it yet.
func (a *asks) denied(in *plan.Input, g growth) string {
	if a.failed >= growTries {
		return "the growth was not taken into the log: " + a.why
	}
	return g.unfit(in)
}

// unfit says why a growth can't be; empty: nothing speaks against it yet.
func (g growth) unfit(in *plan.Input) string {
	first := g.ranks[0]
	if at := in.Job.Position.Step; first.Growth.Step < at {
		return fmt.Sprintf("rank %d asks to grow at step %d, and step %d is committed: a growth is of the committed step or a later one", first.Rank, first.Growth.Step, at)
	}
	for _, rep := range g.ranks {
		if a := rep.Growth; a.Refused != "" {
			return fmt.Sprintf("rank %d on node %s: %s", rep.Rank, in.Job.Ranks[rep.Rank].Node, a.Refused)
		}
	}
	for _, rep := range g.ranks {
		a, b := first.Growth, rep.Growth
		switch {
		case a.Step != b.Step:
			return fmt.Sprintf("rank %d asks to grow at step %d, rank %d at step %d: all ranks ask at one step", first.Rank, a.Step, rep.Rank, b.Step)
		case a.Recipe != b.Recipe:
			return fmt.Sprintf("ranks %d and %d give different recipes: all ranks give the same bytes", first.Rank, rep.Rank)
		}
	}
	for _, members := range in.Record().Members {
		if text := unlike(members, g.ranks); text != "" {
			return text
		}
	}
	for _, r := range g.missing {
		rep := in.Said()[r]
		if rep == nil {
			continue // its node is away
		}
		if w := rep.Live; w.Epoch() == first.Growth.Epoch && reached(w) > reached(replica.PackWord(w.Epoch(), first.Growth.Step,
			replica.Idle)) {
			return fmt.Sprintf("rank %d has gone on to step %d without asking to grow at step %d: all ranks ask between the same two steps", rep.Rank, w.Step(), first.Growth.Step)
		}
		if rep.Left {
			return fmt.Sprintf("rank %d has finished, and does not ask to grow at step %d", rep.Rank, first.Growth.Step)
		}
	}
	return ""
}

// unlike says how two ranks of a group ask for different regions. Raft compares digests; what the nodes say of the difference to before has names.
func unlike(members []replica.Rank, ranks []*replica.RankReport) string {
	var first *replica.RankReport
	for _, rep := range ranks {
		switch {
		case !slices.Contains(members, rep.Rank):
		case first == nil:
			first = rep
		case first.Growth.Geometry != rep.Growth.Geometry && first.Growth.Differs == rep.Growth.Differs:
			return fmt.Sprintf("ranks %d and %d of one group ask for different regions; both by: %s", first.Rank, rep.Rank, rep.Growth.Differs)
		case first.Growth.Geometry != rep.Growth.Geometry:
			return fmt.Sprintf("ranks %d and %d of one group ask for different regions; rank %d: %s; rank %d: %s", first.Rank, rep.Rank, first.Rank, first.Growth.Differs, rep.Rank, rep.Growth.Differs)
		}
	}
	return ""
}

// refuse has each rank that asks answered, and forgets what was known of them.
func (a *asks) refuse(job *replica.Job, g growth, why string) {
	refused := a.refused
	if refused == nil {
		refused = make(map[replica.Rank]answered)
	}
	for _, rep := range g.ranks {
		refused[rep.Rank] = answered{ask: rep.Growth.Ask, node: job.Ranks[rep.Rank].Node, why: why}
	}
	*a = asks{refused: refused}
}

// growCommand is the entry that decides a growth for which all ranks are ready.
func growCommand(job *plan.Record, g growth) replica.Grow {
	first := g.ranks[0].Growth
	c := replica.Grow{Job: job.ID, Epoch: first.Epoch, Step: first.Step, Geometries: make([]replica.Digest, len(job.GroupGeometry)), Bytes: g.bytes, What: first.What}
	for _, rep := range g.ranks {
		c.Geometries[job.Layout.Groups[rep.Rank]] = rep.Growth.Geometry
		if len(rep.Growth.RecipeBytes) > 0 {
			c.Recipe = rep.Growth.RecipeBytes
		}
	}
	return c
}

// waits are for the ranks that have not asked yet for what others ask for, and for those whose nodes have no memory for it yet.
func (a *asks) waits(in *plan.Input, g growth) (out []waiting) {
	if len(g.ranks) == 0 {
		return nil
	}
	is := func(r replica.Rank, does string) {
		out = append(out, waiting{kind: AwaitGrowth, rank: r, node: in.Job.Ranks[r].Node, process: does, since: a.at, until: never, what: fmt.Sprintf("the growth at step %d", g.ranks[0].Growth.Step)})
	}
	for _, r := range g.missing {
		is(r, "has not asked for it")
	}
	for _, rep := range g.ranks {
		if !rep.Growth.Prepared {
			is(rep.Rank, "has no arena for it yet")
		}
	}
	return out
}

// sizeTime is how long so many bytes may take.
func sizeTime(bytes uint64) time.Duration {
	return min(time.Duration(float64(bytes)/growRate*float64(time.Second)), longest)
}

// grownTime is how much longer than otherwise the mirrors of a growth have: all that they hold is laid out anew, and what they held before can't
// be gone back to once the job has resumed.
func grownTime(job *replica.Job) time.Duration {
	if job.Growth == nil {
		return 0
	}
	return sizeTime(job.Growth.Bytes)
}
