package demo

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// cells are a fault's row for people.
func (f Fault) cells() []string {
	ms := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.0f", *v)
	}
	moved := "-"
	if f.MovedBytes != nil {
		moved = fmt.Sprintf("%s / %d", bytesText(*f.MovedBytes), *f.Sources)
	}
	away := "-"
	if f.away > 0 {
		away = fmt.Sprintf("%.1f s", f.away.Seconds())
	}
	return []string{f.Kind, f.target, ms(f.Detected), ms(f.Fenced), ms(f.Planned), moved, ms(f.Verified), ms(f.Resumed), ms(f.firstStep), fmt.Sprint(f.StepsLost), f.From, away}
}

var columns = []string{"fault", "of", "detected", "fenced", "planned", "moved / sources", "verified", "resumed", "first step", "steps lost", "from", "away"}

// line is a fault's outcome in one sentence.
func (f Fault) line() string {
	var b strings.Builder
	if f.firstStep != nil {
		fmt.Fprintf(&b, "all ranks step again after %.0f ms, state from %s, %d steps lost", *f.firstStep, f.From, f.StepsLost)
	} else if f.Resumed != nil {
		fmt.Fprintf(&b, "commits go on after %.0f ms, nothing was reloaded", *f.Resumed)
	}
	if f.MovedBytes != nil {
		fmt.Fprintf(&b, ", %s moved from %d sources", bytesText(*f.MovedBytes), *f.Sources)
	}
	return b.String()
}

// table shows all faults, milliseconds from the injection, and why where something had to be read from disk.
func table(faults []Fault) string {
	if len(faults) == 0 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(columns, "\t"))
	for _, f := range faults {
		fmt.Fprintln(w, strings.Join(f.cells(), "\t"))
	}
	_ = w.Flush() // into memory
	b.WriteString("(milliseconds from the injection; \"away\" is how long the daemon or the nodes were gone)\n")
	for _, f := range faults {
		if f.Reason != "" {
			fmt.Fprintf(&b, "  %s: %s\n", f.Kind, f.Reason)
		}
	}
	return b.String()
}
