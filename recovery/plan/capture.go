package plan

import (
	"github.com/replicad/replicad/replica"
)

// Capturable is the step at which all survivors stand whole, if its capture would give a newer eligible generation.
func (in *Input) Capturable() (g replica.Generation, ok bool) {
	j, st := in.Record(), in.Stock()
	groups := make(map[replica.GroupID][]replica.Rank) // survivors of each
	for r := range j.Ranks {
		rank := replica.Rank(r)
		if j.Vacant(rank) {
			continue
		}
		rep, here := in.Rank(rank)
		live := rep.Live.Generation()
		switch {
		case here && !survivor(rep):
			continue
		case !here || !rep.Whole || !rep.Stopped || len(groups) > 0 && live != g:
			return g, false
		}
		g = live
		groups[j.Layout.Groups[r]] = append(groups[j.Layout.Groups[r]], rank)
	}
	if len(groups) == 0 || !eligible(j.Job, g) {
		return g, false
	}
	best, _, found := st.Newest(j)
	if found && Newer(g, best) >= 0 {
		return g, false
	}
	// A capture goes into a slot that holds neither of these.
	if kept := map[replica.Generation]bool{j.Committed: true, best: true}; len(kept) >= max(2, j.Options.Slots) {
		return g, false
	}
	lone := false // a group would have one producer to speak for it
	for _, p := range Parts(j.Layout) {
		if p.Kind != replica.ReplicatedPart {
			if len(st[g][p]) == 0 {
				return g, false
			}
			continue
		}
		group := replica.GroupID(p.Index)
		if len(st[g][p]) == 0 && len(groups[group]) == 0 {
			return g, false
		}
		lone = lone || st.voices(g, p, groups[group]) < min(2, len(j.MembersOf(group)))
	}
	return g, !lone || !j.Options.RequireVotes && !(found && nearEnough(j.Job, g, best))
}

// voices counts the ranks that have sealed a part of g themselves, or will.
func (st stock) voices(g replica.Generation, p replica.Part, will []replica.Rank) int {
	speak := make(map[replica.Rank]bool)
	for _, r := range will {
		speak[r] = true
	}
	for _, c := range st[g][p] {
		if c.produced() {
			speak[c.Held.Rank] = true
		}
	}
	return len(speak)
}

// survivor tells whether a process has state of an opened epoch; one that claimed its rank since the fault has none yet.
func survivor(rep replica.RankReport) bool { return rep.Loaded != 0 && rep.Loaded == rep.Live.Epoch() }

// AllCaptured tells whether every survivor holds its replicated part of g in its own arena.
func (in *Input) AllCaptured(g replica.Generation) bool {
	held := make(map[replica.Rank]bool)
	for p, copies := range in.Stock()[g] {
		for _, c := range copies {
			if p.Kind == replica.ReplicatedPart && !c.Held.Mirror {
				held[c.Held.Rank] = true
			}
		}
	}
	for r := range in.Job.Ranks {
		rep, here := in.Rank(replica.Rank(r))
		if here && survivor(rep) && !held[rep.Rank] {
			return false
		}
	}
	return true
}
