package console

import (
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

// MaxLine bounds what is printed of a text that others wrote.
const MaxLine = 1000

// Line is such a text as it is printed.
func Line(s string) string { return replica.Line(s, MaxLine) }

// Age is the time since then, for people.
func Age(since time.Time) string {
	if since.IsZero() || since.Unix() <= 0 {
		return "-"
	}
	switch d := time.Since(since); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", max(d.Seconds(), 0))
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	default:
		return fmt.Sprintf("%.0f d", d.Hours()/24)
	}
}

// Size is a number of bytes for people.
func Size(n uint64) string {
	v, unit := float64(n), "B"
	for _, u := range strings.Fields("KiB MiB GiB TiB PiB") {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

// Dash is the text, and - where there is none.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
