package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// Opens tells whether the job goes on from what its ranks seal in this epoch: it never ran before, or it grows.
func (in *Input) Opens() bool {
	return in.Job.Phase == replica.Opening && (len(in.Job.Lineage) == 0 || in.Job.Growth != nil)
}

// decideOpening decides on the first epoch, for which exactly (p, init) is eligible, or on that of a growth, for which exactly (p, step) is.
func (in *Input) decideOpening() (choice, Verdict) {
	var waiting []replica.Rank
	for r := range in.Job.Ranks {
		if rep, ok := in.Rank(replica.Rank(r)); !ok || !in.SealedInitial(rep) {
			waiting = append(waiting, replica.Rank(r))
		}
	}
	if len(waiting) > 0 {
		return choice{}, Verdict{Kind: Wait, Why: ForRanks, Ranks: waiting,
			Reason: fmt.Sprintf("ranks %v have not sealed %s", RankList(waiting), in.sealing())}
	}
	step, differ := in.begins()
	if differ != "" {
		return choice{}, Verdict{Kind: Stuck, Final: true, Reason: DoNotRequeue + differ}
	}
	init := replica.Generation{Epoch: in.Job.Epoch, Step: step}
	st := in.Stock()
	if d := st.disputed(in.Job, init); d != nil {
		return choice{}, Verdict{Kind: Stuck, Final: true, Reason: d.String(), Dispute: d}
	}
	lots, missing := st.assemble(in.Record(), init, nil)
	if len(missing) > 0 {
		return choice{}, in.unmade(missing[0], len(st[init][missing[0]]) == 0)
	}
	reason := "opening: the initial state that every rank sealed"
	if step > 0 {
		reason += fmt.Sprintf(", of step %d", step)
	}
	if from := in.Job.From; from != nil {
		reason = fmt.Sprintf("opening: %v, as every rank has loaded and sealed it", from)
	}
	if in.Job.Growth != nil {
		reason = fmt.Sprintf("growth: step %d, which every rank sealed with its new regions", init.Step)
	}
	return choice{gen: init, lots: lots, reason: reason, initial: true}, Verdict{Kind: Ready, Reason: reason}
}

// begins is the step of what the ranks of a job that opens have sealed, or why there is none: where nothing says at which step the job begins, its ranks do, by a state of
// their own.
func (in *Input) begins() (step replica.Step, differ string) {
	switch {
	case in.Job.Growth != nil:
		return in.Job.Growth.Step, ""
	case in.Job.From != nil:
		return in.Job.Start(), ""
	}
	first := -1
	for r := range in.Job.Ranks {
		rep, ok := in.Rank(replica.Rank(r))
		if !ok || rep.Live.Epoch() != in.Job.Epoch { // one that takes the state from another rank
			continue
		}
		switch sealed := rep.Live.Step(); {
		case first < 0:
			first, step = r, sealed
		case sealed != step:
			return 0, fmt.Sprintf("rank %d begins at step %d, rank %d at step %d: what the program loads by itself must be of one step on all ranks (session.resume(otherwise=...))", first, step, r, sealed)
		}
	}
	return step, ""
}

// unmade is the verdict on a part that is missing where each rank has sealed what it was to.
func (in *Input) unmade(part replica.Part, nobodys bool) Verdict {
	if nobodys && part.Kind == replica.PrivatePart && in.Job.Growth == nil {
		return Verdict{Kind: Stuck, Final: true, Reason: DoNotRequeue + fmt.Sprintf("rank %d has sealed what is its own of another step than the job begins at: a rank that calls rp_seal_own says that step too (rp_begin_at)", part.Index)}
	}
	if nobodys && part.Kind == replica.ReplicatedPart && in.Job.Growth == nil {
		return Verdict{Kind: Stuck, Final: true, Reason: DoNotRequeue + fmt.Sprintf("nobody makes the initial state of %v: each of its ranks takes it from another one (rp_seal_own): have one of them call rp_seal_initial", part)}
	}
	return Verdict{Kind: Wait, Why: ForRanks, Reason: fmt.Sprintf("%v of the initial state is not reported yet", part)}
}

// sealing is what the ranks of a job that opens seal.
func (in *Input) sealing() string {
	if in.Job.Growth != nil {
		return fmt.Sprintf("step %d with their new regions", in.Job.Growth.Step)
	}
	return "their initial state"
}

// disputed finds a part of g that its producers sealed under different roots.
func (st stock) disputed(j *replica.Job, g replica.Generation) *Dispute {
	for _, p := range Parts(j.Layout) {
		copies := st[g][p]
		if len(copies) == 0 {
			continue
		}
		if _, _, ok := agreedRoot(j, p, copies); ok {
			continue
		}
		speaking := speakers(copies)
		first := speaking[0]
		other := slices.IndexFunc(speaking, func(s Sealed) bool { return s.Held.Root != first.Held.Root })
		return &Dispute{Part: p, Gen: g, Between: [2]Sealed{first, speaking[other]}, Roots: st.roots(g, p)}
	}
	return nil
}

func (st stock) roots(g replica.Generation, p replica.Part) string {
	var out []string
	for _, c := range st[g][p] {
		out = append(out, fmt.Sprintf("rank %d on %s: %v", c.Held.Rank, c.Holder.Node, c.Held.Root))
	}
	return strings.Join(out, ", ")
}
