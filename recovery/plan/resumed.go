package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// maxResumed bounds what is said of the durable generation that a plan goes on from, in bytes.
const maxResumed = 700

// ahead tells whether a durable generation lies ahead of another in the order in which the tier is searched.
func (d DurableGen) ahead(of DurableGen) bool {
	return cmp.Or(cmp.Compare(d.Position.Epoch, of.Position.Epoch), cmp.Compare(d.Position.Step, of.Position.Step), d.Generation.Compare(of.Generation)) > 0
}

// unusable says of the durable generations that can't be used what is wrong with each, the newest first; only of those ahead of from, if there
// is one.
func unusable(durable []DurableGen, from *DurableGen) (list []string) {
	bad := slices.DeleteFunc(slices.Clone(durable), func(d DurableGen) bool { return d.Bad == "" || from != nil && !d.ahead(*from) })
	slices.SortStableFunc(bad, func(a, b DurableGen) int {
		if a.ahead(b) {
			return -1
		}
		return 1
	})
	for _, d := range bad {
		list = append(list, fmt.Sprintf("step %d: %s", d.Position.Step, d.Bad))
	}
	return list
}

// resumedText says which durable generation a plan goes on from, and what it passes over.
func (in *Input) resumedText(d DurableGen) string {
	text := cmp.Or(d.Says, fmt.Sprintf("step %d of the durable tier", d.Position.Step))
	const over = "; passed over "
	if bad := unusable(in.Durable, &d); len(bad) > 0 {
		text = replica.Line(text, maxResumed/2)
		text += over + replica.Listed(bad, maxResumed-len(text)-len(over))
	}
	return replica.Line(text, maxResumed)
}

// wrongWith says what is wrong with the generations that the durable tier has, where none can be used; empty: it has none.
func (in *Input) wrongWith() string {
	bad := unusable(in.Durable, nil)
	if len(bad) == 0 {
		return ""
	}
	return ": " + replica.Listed(bad, maxResumed)
}
