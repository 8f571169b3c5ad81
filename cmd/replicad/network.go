package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/replicad/replicad/internal/control"
)

// printNetwork shows what a node moved, by peer and transport.
func printNetwork(w io.Writer, s control.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	n := s.Network
	fmt.Fprintf(t, "node %s since its daemon began\tsent %s, received %s\n", s.Node, size(n.Sent), size(n.Received))
	for _, note := range n.Notes {
		fmt.Fprintf(t, "slower\t%s\n", note)
	}
	if n.HeldTo > 0 {
		fmt.Fprintf(t, "held back\tto %s a second, for the ranks that train here (donor_rate)", size(uint64(n.HeldTo)))
		if n.HeldWhy != "" {
			fmt.Fprintf(t, ": %s", n.HeldWhy)
		}
		fmt.Fprintln(t)
	}
	if len(n.Peers) == 0 {
		fmt.Fprintf(t, "\nno state has been fetched from or pushed to another node yet\n")
		return t.Flush()
	}
	fmt.Fprintf(t, "\nPEER\tOVER\tRATE\tFETCHED\tPUSHED\tFAILURES\n")
	for _, p := range n.Peers {
		rate := "-"
		if p.Rate > 0 {
			rate = size(uint64(p.Rate)) + "/s"
		}
		failures := fmt.Sprint(p.Failures)
		if p.Failures > 0 {
			failures += fmt.Sprintf(", the newest at %s: %s", p.WhyAt.Format(time.TimeOnly), p.Why)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Peer, p.Over, rate, size(p.Fetched), size(p.Pushed), failures)
	}
	return t.Flush()
}
