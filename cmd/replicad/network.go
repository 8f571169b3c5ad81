package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/replicad/replicad/internal/control"
)

// printNetwork shows what a node moved, by peer, address and transport.
func printNetwork(w io.Writer, s control.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	n := s.Network
	printf(t, "node %s since its daemon began\tsent %s, received %s\n", s.Node, size(n.Sent), size(n.Received))
	for _, note := range n.Notes {
		printf(t, "slower\t%s\n", note)
	}
	if n.HeldTo > 0 {
		printf(t, "held back\tto %s a second, for the ranks that train here (donor_rate)", size(uint64(n.HeldTo)))
		if n.HeldWhy != "" {
			printf(t, ": %s", n.HeldWhy)
		}
		printf(t, "\n")
	}
	if len(n.Paths) > 0 {
		printf(t, "\nPEER\tADDRESS\tSTATE\tPROBE\tRATE\tSENT\tRECEIVED\n")
	}
	for _, p := range n.Paths {
		probe := "-"
		if p.ProbeUS > 0 {
			probe = (time.Duration(p.ProbeUS) * time.Microsecond).String()
		}
		printf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Peer, p.Addr, p.State, probe, rate(p.Rate), size(p.Sent), size(p.Received))
	}
	if len(n.Peers) == 0 {
		printf(t, "\nno state has been fetched from or pushed to another node yet\n")
		return t.Flush()
	}
	printf(t, "\nPEER\tOVER\tRATE\tFETCHED\tPUSHED\tFAILURES\n")
	for _, p := range n.Peers {
		failures := fmt.Sprint(p.Failures)
		if p.Failures > 0 {
			failures += fmt.Sprintf(", the newest at %s: %s", p.WhyAt.Format(time.TimeOnly), p.Why)
		}
		printf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Peer, p.Over, rate(p.Rate), size(p.Fetched), size(p.Pushed), failures)
	}
	return t.Flush()
}

// rate is bytes a second for people; - where none was measured.
func rate(r float64) string {
	if r == 0 {
		return "-"
	}
	return size(uint64(r)) + "/s"
}
