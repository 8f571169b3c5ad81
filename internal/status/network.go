package status

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
)

// PrintNetwork shows what a node moved, by peer, address and transport.
func PrintNetwork(w io.Writer, s control.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	n := s.Network
	console.Printf(t, "node %s since its daemon began\tsent %s, received %s\n", s.Node, console.Size(n.Sent), console.Size(n.Received))
	for _, note := range n.Notes {
		console.Printf(t, "slower\t%s\n", note)
	}
	if n.HeldTo > 0 {
		console.Printf(t, "held back\tto %s a second, for the ranks that train here (donor_rate)", console.Size(uint64(n.HeldTo)))
		if n.HeldWhy != "" {
			console.Printf(t, ": %s", n.HeldWhy)
		}
		console.Printf(t, "\n")
	}
	if len(n.Paths) > 0 {
		console.Printf(t, "\nPEER\tADDRESS\tSTATE\tPROBE\tRATE\tSENT\tRECEIVED\n")
	}
	for _, p := range n.Paths {
		probe := "-"
		if p.ProbeUS > 0 {
			probe = (time.Duration(p.ProbeUS) * time.Microsecond).String()
		}
		console.Printf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Peer, p.Addr, p.State, probe, rate(p.Rate), console.Size(p.Sent),
			console.Size(p.Received))
	}
	if len(n.Peers) == 0 {
		console.Printf(t, "\nno state has been fetched from or pushed to another node yet\n")
		return t.Flush()
	}
	console.Printf(t, "\nPEER\tOVER\tRATE\tFETCHED\tPUSHED\tFAILURES\n")
	for _, p := range n.Peers {
		failures := fmt.Sprint(p.Failures)
		if p.Failures > 0 {
			failures += fmt.Sprintf(", the newest at %s: %s", p.WhyAt.Format(time.TimeOnly), p.Why)
		}
		console.Printf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Peer, p.Over, rate(p.Rate), console.Size(p.Fetched), console.Size(p.Pushed),
			failures)
	}
	return t.Flush()
}

// rate is bytes a second for people; - where none was measured.
func rate(r float64) string {
	if r == 0 {
		return "-"
	}
	return console.Size(uint64(r)) + "/s"
}
