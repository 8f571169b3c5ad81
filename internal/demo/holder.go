package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// killHolder loses a node, and while its rank's state is on the way to another node, a holder that sends it: the holder's whole node, or
// its daemon alone, which comes back. The first node comes back at once, with an empty memory: two voters of three are gone else.
func (d *driver) killHolder(ctx context.Context, kind string) (Fault, error) {
	was := d.now()
	_, step := d.latest()
	lost := d.ordinaryNode()[0]
	f := Fault{Kind: kind, target: lost, step: step}
	d.say("kill %s: keeper, daemon, launcher and ranks; its addresses fall silent", lost)
	f.at = time.Now()
	if err := d.cluster.Kill(d.cluster.Node(lost)); err != nil {
		return f, fmt.Errorf("fault %s: %w", kind, err)
	}
	var moving cluster.LogEvent
	err := d.await(ctx, patienceRecover, fmt.Sprintf("the state of the ranks of %s to be on its way to another node", lost), func() bool {
		i := slices.IndexFunc(d.journal.Log, func(e cluster.LogEvent) bool { return e.Epoch > was.epoch && len(sending(e, lost)) > 0 })
		if i >= 0 {
			moving = d.journal.Log[i]
		}
		return i >= 0
	})
	if err != nil {
		return f, err
	}
	from := sending(moving, lost)
	holder := d.cluster.Node(from[d.rng.IntN(len(from))])
	f.target += ", then " + holder.Name
	d.say("%s fetches %s, %s, from %s: SIGKILL what runs on %s", moving.From, moving.Part, bytesText(moving.Bytes), strings.Join(moving.Holders, ", "), holder.Name)
	if kind == HolderDaemon {
		holder.Daemon.Kill()
	} else if err := d.cluster.Kill(holder); err != nil {
		return f, fmt.Errorf("fault %s: %w", kind, err)
	}
	if slices.ContainsFunc(d.events(), func(e cluster.LogEvent) bool {
		return e.Event == "moved" && e.Epoch == moving.Epoch && e.Rank == moving.Rank && e.Part == moving.Part && e.From == moving.From
	}) {
		// On two busy cores the signal may come after a small transfer. The run goes on: a holder that just sent is a fault as well.
		d.say("%s had all of %s before %s was gone; a larger --state-mb makes the transfer longer", moving.From, moving.Part, holder.Name)
	}
	if err := d.revive(lost); err != nil {
		return f, fmt.Errorf("fault %s: %w", kind, err)
	}
	if kind == HolderDaemon {
		if err := d.pause(ctx, downtimeDaemon); err != nil {
			return f, err
		}
		if err := d.cluster.StartDaemon(holder); err != nil {
			return f, err
		}
	}
	if err := d.awaitResume(ctx, &f, was, patienceRecover); err != nil {
		return f, err
	}
	if kind == HolderDaemon {
		return f, nil
	}
	return f, d.reviveAll(&f, []string{holder.Name})
}

// sending are the nodes that a part of a replica group is fetched from, as the event says, but for the one that fetches and the lost one.
func sending(e cluster.LogEvent, lost string) []string {
	if e.Event != "fetching" || !strings.HasPrefix(e.Part, "group") {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(e.Holders), func(n string) bool { return n == e.From || n == lost })
}
