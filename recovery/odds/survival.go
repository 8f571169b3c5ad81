package odds

import (
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// Survival says what would become of a job at a loss.
type Survival struct {
	Loss   Loss
	Resume replica.Generation // the newest generation that the memory left behind would have whole; zero: none
	// Lacks are parts of the committed generation that no memory would have, maxLacks at most; Lacking counts all of them.
	Lacks   []Lack
	Lacking int
	Moves   []replica.Rank // ranks that need a process on one of the nodes that are left, in rising order
	Offered int            // processes that these nodes would start
	Votes   int            // of Loss.Voters, that vote and would be left

	of *outlook
	is map[replica.NodeName]bool // the nodes whose copies are gone
}

// Lack is a part that no memory would have.
type Lack struct {
	Part    replica.Part
	Holders []replica.NodeName // that have it now
	Older   replica.Generation // the newest of the part that a node which is left reported; zero: none
	On      replica.NodeName   // that node
}

// maxLacks bounds the missing parts that a Survival names.
const maxLacks = 4

// able are the nodes that could be given ranks and mirrors, in the order of their names.
func (s Survival) able() []replica.NodeName {
	return slices.DeleteFunc(slices.Clone(s.of.able), func(n replica.NodeName) bool { return s.is[n] })
}

// InMemory tells whether memory alone would take the job on, with no committed step lost.
func (s Survival) InMemory() bool {
	j := s.of.now.Job
	return !s.Resume.IsZero() && !j.Committed.IsZero() && s.Resume.Step >= j.Position.Step
}

// Held says who would be left with each part of a generation, in the order of the parts; of a part that nobody would have, nobody.
func (s Survival) Held(g replica.Generation) []replica.PartHolders {
	shelf, is := s.of.shelfOf(g), s.of.touched(g, s.is)
	out := make([]replica.PartHolders, len(shelf.lots))
	for i, l := range shelf.lots {
		if n, touched := is[i]; touched {
			l = n
		}
		out[i].Part = l.Part
		for k, c := range l.Copies {
			if k == 0 || c.Holder != l.Copies[k-1].Holder {
				out[i].Holders = append(out[i].Holders, c.Holder)
			}
		}
	}
	return out
}

// Why says why the job would not go on by itself from memory; empty: it would.
func (s Survival) Why() (why []string) {
	j := s.of.now.Job
	if j.Phase != replica.Open {
		why = append(why, fmt.Sprintf("the job is %v: a recovery is under way", j.Phase))
	}
	if !s.InMemory() && !j.Committed.IsZero() {
		for _, l := range s.Lacks {
			why = append(why, l.text(j))
		}
		if more := s.Lacking - len(s.Lacks); more > 0 {
			why = append(why, fmt.Sprintf("and %d more parts", more))
		}
		if s.Lacking == 0 {
			why = append(why, fmt.Sprintf("step %d can't be resumed at, though memory has every part of it: it is disputed, condemned, or rests on one rank's word", j.Position.Step))
		}
	}
	if len(s.Moves) > s.Offered {
		why = append(why, fmt.Sprintf("%d processes would have to start elsewhere (ranks %s), other nodes offer %s: start `replicad run --spare` there", len(s.Moves), ranksText(s.Moves), s.seats()))
	}
	if !s.Quorate() {
		text := fmt.Sprintf("%d of %d voters would be left, which is no majority: nothing could be planned", s.Votes, len(s.Loss.Voters))
		if mute := s.Loss.Mute; len(mute) > 0 {
			text += fmt.Sprintf(" (%s do not vote now)", joinNames(mute, " and "))
			if len(mute) == 1 {
				text = strings.Replace(text, " do not vote", " does not vote", 1)
			}
		}
		why = append(why, text)
	}
	return why
}

// Quorate tells whether the loss leaves a majority that votes. A loss of nodes that do not vote leaves the one that there is.
func (s Survival) Quorate() bool {
	voting := s.Loss.voting()
	return 2*s.Votes > len(s.Loss.Voters) || !slices.ContainsFunc(s.Loss.Nodes, func(n replica.NodeName) bool { return slices.Contains(voting, n) }) || s.Loss.Kept
}

func (l Lack) text(j *replica.Job) string {
	by := "nobody"
	if len(l.Holders) > 0 {
		by = joinNames(l.Holders, " and ") + " alone"
	}
	text := fmt.Sprintf("%v of step %d is held by %s", l.Part, j.Position.Step, by)
	if l.On != "" {
		text += fmt.Sprintf("; node %s had step %d when it reported last", l.On, l.Older.Step)
	}
	switch {
	case j.Degraded:
		text += fmt.Sprintf(" (commits wait for %d copies, fewer than the job asks for)", j.Copies)
	case j.Copies < replica.DefaultMinCopies:
		text += fmt.Sprintf(" (commits wait for %d copies: --min-copies)", j.Copies)
	}
	return text
}

func joinNames(names []replica.NodeName, by string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return strings.Join(out, by)
}

func ranksText(ranks []replica.Rank) string {
	if len(ranks) > plan.Listed {
		return plan.RankList(ranks).String()
	}
	out := make([]string, len(ranks))
	for i, r := range ranks {
		out[i] = fmt.Sprint(r)
	}
	return strings.Join(out, ", ")
}

// seats names the nodes that offer processes.
func (s Survival) seats() string {
	var out []string
	more := 0
	for _, n := range s.able() {
		switch k := s.of.offers[n]; {
		case k == 0:
		case len(out) < plan.Listed:
			out = append(out, fmt.Sprintf("%s: %d", n, k))
		default:
			more++
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("%d more nodes", more))
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// Unseated says that the ranks which run on the nodes could not all run elsewhere; empty: they could, or there are none.
func (s Survival) Unseated() string {
	here := 0
	for _, n := range s.Loss.Nodes {
		here += len(plan.RanksOn(s.of.now.Job, n))
	}
	if here == 0 || len(s.Moves) <= s.Offered {
		return ""
	}
	text := fmt.Sprintf("it runs %d ranks there, and other nodes offer %d processes", here, s.Offered)
	if more := len(s.Moves) - here; more > 0 {
		text += fmt.Sprintf(", for which %d other ranks wait", more)
	}
	return text
}

// Cost says what the job gives up in safety while it does without the nodes, whose ranks move elsewhere; empty: nothing.
func (s Survival) Cost() string {
	j := s.of.now.Job
	able, costs := s.able(), []string(nil)
	if want := place.MinCopies(j.Options); len(able) < want {
		costs = append(costs, fmt.Sprintf("each part of a step would lie on at most %d nodes instead of %d (degraded)", len(able), want))
	}
	if len(able) == 1 {
		after := "would end the job"
		if j.Options.DurableEvery > 0 || !j.Durable.IsZero() {
			after = "would take it back to its durable tier"
		}
		costs = append(costs, fmt.Sprintf("all its ranks would run on node %s, whose loss %s", able[0], after))
	}
	return strings.Join(append(costs, s.alone(able)...), "; ")
}

// alone says which parts of the committed step only the nodes hold that are lost, and others that can't be relied on.
func (s Survival) alone(able []replica.NodeName) []string {
	g := s.of.now.Job.Committed
	if g.IsZero() {
		return nil
	}
	var parts []string
	for _, l := range s.of.shelfOf(g).lots {
		held := nodesOf(l)
		among := func(names []replica.NodeName) bool {
			return slices.ContainsFunc(held, func(n replica.NodeName) bool { return slices.Contains(names, n) })
		}
		if among(s.Loss.Nodes) && !among(able) {
			parts = append(parts, l.Part.String())
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("until its ranks run elsewhere, node %s alone holds %s of the committed step %d", joinNames(s.Loss.Nodes, ", "), strings.Join(parts[:min(len(parts), maxLacks)], ", "), s.of.now.Job.Position.Step)}
}
