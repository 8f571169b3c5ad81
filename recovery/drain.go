package recovery

import (
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// DrainCost says what a job loses in safety if a node gets no rank and no mirror any more; empty: nothing. able are the nodes that could
// take ranks and mirrors now, the drained one among them or not.
func DrainCost(j *replica.Job, able []replica.NodeName, node replica.NodeName) string {
	left := slices.DeleteFunc(slices.Clone(able), func(n replica.NodeName) bool { return n == node })
	var costs []string
	if want := minCopies(j.Options); len(left) < want {
		costs = append(costs, fmt.Sprintf("each part of a step would lie on at most %d nodes instead of %d (degraded)", len(left), want))
	}
	if len(left) == 1 {
		after := "would end the job"
		if j.Options.DurableEvery > 0 || !j.Durable.IsZero() {
			after = "would take it back to its durable tier"
		}
		costs = append(costs, fmt.Sprintf("all its ranks would run on node %s, whose loss %s", left[0], after))
	}
	var alone []string
	for _, p := range j.Parts {
		if !slices.ContainsFunc(p.Holders, func(h replica.Holder) bool { return slices.Contains(left, h.Node) }) {
			alone = append(alone, p.Part.String())
		}
	}
	if len(alone) > 0 {
		costs = append(costs, fmt.Sprintf("until its ranks run elsewhere, node %s alone holds %s of the committed step %d", node, strings.Join(alone[:min(len(alone), 4)], ", "), j.Position.Step))
	}
	return strings.Join(costs, "; ")
}
