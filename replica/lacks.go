package replica

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxLacks caps what a rank says that its copies lack, in bytes.
const MaxLacks = 1000

// maxLacking caps the rows of Fold.
const maxLacking = 8

// Lacks is a rank's own word on its copies: the names of what its program changes and no copy holds, separated by ", ".
type Lacks struct {
	Rank        Rank        `json:"rank" cbor:"1,keyasint"`
	Incarnation Incarnation `json:"incarnation" cbor:"2,keyasint"`
	Text        string      `json:"text,omitempty" cbor:"3,keyasint,omitempty"` // what each new copy lacks; empty: nothing
	// Earlier is what the rank has taken back, or what an earlier process of it said: the generations up to Until lack it.
	Earlier string     `json:"earlier,omitempty" cbor:"4,keyasint,omitempty"`
	Until   Generation `json:"until,omitzero" cbor:"5,keyasint,omitempty"`
}

// Now is what the rank says from here on. The generations up to live still lack what it said before.
func (l Lacks) Now(text string, live Generation) Lacks {
	if text == l.Text {
		return l
	}
	if l.Text != "" {
		l.Earlier = union(l.Text, l.Earlier)
		if live.Compare(l.Until) > 0 {
			l.Until = live
		}
	}
	l.Text = text
	return l
}

// Of is what a generation lacks.
func (l Lacks) Of(g Generation) string {
	if l.Earlier == "" || g.Compare(l.Until) > 0 {
		return l.Text
	}
	return union(l.Text, l.Earlier)
}

// union puts two lists of names together, each name once.
func union(a, b string) string {
	var all []string
	for _, list := range []string{a, b} {
		for name := range strings.SplitSeq(list, ", ") {
			if name != "" && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return Cut(strings.Join(all, ", "), MaxLacks)
}

// Lacking is a row for people: what copies of a rank lack, and of how many more that say the same.
type Lacking struct {
	Rank Rank   `json:"rank" cbor:"1,keyasint"`
	More int    `json:"more,omitempty" cbor:"2,keyasint,omitempty"`
	Text string `json:"text" cbor:"3,keyasint"`
}

// Who names the ranks of a row.
func (l Lacking) Who() string {
	if l.More == 0 {
		return fmt.Sprintf("rank %d", l.Rank)
	}
	return fmt.Sprintf("rank %d and %d more", l.Rank, l.More)
}

// Fold makes one row of ranks that lack the same, by the first rank of each. There are few rows: the last one counts all ranks beyond those.
func Fold(said map[Rank]string) []Lacking {
	rows := map[string]Lacking{}
	for rank, text := range said {
		row, ok := rows[text]
		if ok {
			row.More++
		}
		if !ok || rank < row.Rank {
			row.Rank = rank
		}
		row.Text = text
		rows[text] = row
	}
	delete(rows, "")
	var out []Lacking
	for _, row := range rows {
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b Lacking) int { return cmp.Compare(a.Rank, b.Rank) })
	if len(out) > maxLacking {
		last := &out[maxLacking-1]
		for _, row := range out[maxLacking:] {
			last.More += 1 + row.More
		}
		last.Text = "other names on each: see their own output"
		out = out[:maxLacking]
	}
	return out
}

// LackingNow is what new copies of the job lack, by the reports of its nodes. What an earlier process of a rank said does not count.
func LackingNow(job *Job, reports map[NodeName]NodeReport) []Lacking {
	return lacking(reports, func(rep NodeReport, l Lacks) string {
		if !rep.speaksFor(job, l) {
			return ""
		}
		return l.Text
	})
}

// LackingIn is what a generation of the job lacks, also by the word of processes that have ended: they may have had a part in it.
func LackingIn(job *Job, reports map[NodeName]NodeReport, g Generation) []Lacking {
	return lacking(reports, func(rep NodeReport, l Lacks) string {
		if !rep.speaksFor(job, l) && g.Epoch > rep.Epoch {
			return "" // its node has been silent since the epoch before, and its process has no part in this one
		}
		return l.Of(g)
	})
}

func lacking(reports map[NodeName]NodeReport, of func(NodeReport, Lacks) string) []Lacking {
	said := map[Rank]string{}
	for _, node := range slices.Sorted(maps.Keys(reports)) {
		for _, l := range reports[node].Lacks {
			said[l.Rank] = union(said[l.Rank], of(reports[node], l))
		}
	}
	return Fold(said)
}

// speaksFor tells whether it is the word of the rank's newest process, and by the node that has it.
func (r NodeReport) speaksFor(job *Job, l Lacks) bool {
	if int(l.Rank) >= len(job.Ranks) {
		return false
	}
	c := job.Ranks[l.Rank]
	return c.Incarnation == l.Incarnation && c.Node == r.Holder.Node
}
