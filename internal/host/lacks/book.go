package lacks

import (
	"maps"
	"slices"

	"github.com/replicad/replicad/replica"
)

// maxLines caps what the launchers print by the word of one rank: a list may grow at each step. Status has it whole.
const maxLines = 8

// Book has a page for each rank that has said something, and is still needed.
type Book map[replica.Rank]page

type page struct {
	replica.Lacks
	since replica.Generation // live when Text was said
	told  bool               // the launchers have printed Text
	lines int                // that they have printed by this rank's word
}

// Say takes a rank's word, at the live generation of its process. False: it is nothing new.
func (b Book) Say(rank replica.Rank, by replica.Incarnation, text string, live replica.Generation) (news bool) {
	p := b[rank]
	if p.Incarnation > by || p.Incarnation == by && p.Text == text || p.Incarnation == 0 && text == "" {
		return false
	}
	p.Lacks = p.Now(text, live)
	p.Rank, p.Incarnation, p.since, p.told = rank, by, live, false
	b[rank] = p
	return true
}

// Learn follows the job. A process that has lost its rank says nothing any more; its epoch is closed, and what it said goes for that one. What no
// generation that is still to be written lacks is forgotten.
func (b Book) Learn(job *replica.Job) {
	if job.Phase == replica.Ended {
		clear(b)
		return
	}
	for rank, p := range b {
		if p.Text != "" && int(rank) < len(job.Ranks) && job.Ranks[rank].Incarnation > p.Incarnation {
			p.Lacks = p.Now("", replica.Generation{Epoch: job.ClosedEpoch, Step: replica.MaxStep})
		}
		if job.Committed.Compare(p.Until) > 0 && (job.Writer == nil || job.Writer.Generation.Compare(p.Until) > 0) {
			p.Earlier, p.Until = "", replica.Generation{}
		}
		if b[rank] = p; p.Text == "" && p.Earlier == "" {
			delete(b, rank)
		}
	}
}

// Report lists what the leader is to know, by rank.
func (b Book) Report() (out []replica.Lacks) {
	for _, rank := range slices.Sorted(maps.Keys(b)) {
		out = append(out, b[rank].Lacks)
	}
	return out
}

// Committed tells what the launchers are to print at a commit: each text that was said before it, and that they have not printed yet.
func (b Book) Committed(g replica.Generation) []replica.Lacking {
	told := map[string]bool{}
	for _, p := range b {
		if p.told {
			told[p.Text] = true
		}
	}
	news := map[replica.Rank]string{}
	for rank, p := range b {
		if p.Text == "" || p.told || g.Compare(p.since) < 0 {
			continue
		}
		if p.told = true; !told[p.Text] && p.lines < maxLines {
			p.lines++
			news[rank] = p.Text
		}
		b[rank] = p
	}
	return replica.Fold(news)
}
