package hostile

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// String is an outcome as a line for people.
func (o Outcome) String() string {
	verdict := "held"
	if o.Try > 1 {
		verdict = fmt.Sprintf("held at try %d", o.Try)
	}
	if len(o.Failed) > 0 {
		verdict = "FAILED  " + strings.Join(o.Failed, "; ")
	}
	return fmt.Sprintf("%-18s %-3s %5.1f s  %4d commits (gap %4d ms, stall %3d ms)  RSS %3d -> %3d -> %3d MiB of %3d  log %3d KiB  %s  %s", o.Name, o.Victim, o.Seconds, o.Commits, o.GapMS, o.StallMS, o.IdleMiB, o.PeakMiB, o.AfterMiB, o.LimitMiB, o.LogKiB, o.did(), verdict)
}

// did is what was counted, in words.
func (o Outcome) did() string {
	var list []string
	for _, what := range slices.Sorted(maps.Keys(o.Did)) {
		list = append(list, fmt.Sprintf("%d %s", o.Did[what], what))
	}
	return strings.Join(list, ", ")
}

// Table writes the report as a table of Markdown.
func (r Report) Table(w io.Writer) {
	fmt.Fprintln(w, "| pattern | who does what | what the daemon must do | counted | RSS: idle, peak, after, limit (MiB) | commits, longest gap | links lost | |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|")
	for _, o := range r.Outcomes {
		verdict := "held"
		if o.Try > 1 {
			verdict = fmt.Sprintf("held at try %d", o.Try)
		}
		if len(o.Failed) > 0 {
			verdict = "**failed**: " + strings.Join(o.Failed, "; ")
		}
		fmt.Fprintf(w, "| `%s` | %s: %s | %s | %s | %d, %d, %d, %d | %d, %d ms | %d | %s |\n", o.Name, o.Who, o.Does, o.Must, o.did(), o.IdleMiB, o.PeakMiB, o.AfterMiB, o.LimitMiB, o.Commits, o.GapMS, o.Links, verdict)
	}
}
