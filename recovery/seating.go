package recovery

import (
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// seating is the search for processes for vacant ranks: which node each is offered to, and what nodes offer besides.
type seating struct {
	known  *known
	outbox *outbox

	offers map[replica.Rank]*offering
	turn   replica.Rank // the first to be offered in the next step
	short  int          // vacant ranks that no node offers a process for
	seated *seats       // what nodes offer, counted once a step
}

func newSeating(k *known, ob *outbox) seating {
	return seating{known: k, outbox: ob, offers: make(map[replica.Rank]*offering)}
}

// opened ends the search: every rank of an open epoch has its process.
func (se *seating) opened() {
	if len(se.offers) > 0 {
		se.known.clocks.EndAll(func(k replica.Clock) bool { return k.Kind == clockVacant || k.Kind == clockOffered })
	}
	clear(se.offers)
}

func (se *seating) waitForProcess(in *plan.Input, r replica.Rank, short string) waiting {
	o := se.offers[r]
	switch {
	case o == nil || o.node == "":
		return waiting{kind: AwaitProcess, rank: r, until: never, why: short}
	case !se.seats(in).starts(o.node, r):
		return waiting{kind: AwaitStart, rank: r, node: o.node, since: o.at, until: never}
	}
	w := waiting{kind: AwaitAttach, rank: r, node: o.node, since: o.at, until: never, process: "its process", why: short}
	rep := in.Reports[o.node]
	if i := slices.Index(rep.Starting, r); i >= 0 && i < len(rep.StartingPIDs) && rep.StartingPIDs[i] != 0 {
		w.pid, w.halted = rep.StartingPIDs[i], slices.Contains(rep.StartingHalted, r)
		w.process = fmt.Sprintf("process %d", w.pid)
	}
	return w
}

// seatsBesides is how many processes other nodes than one offer.
func (se *seating) seatsBesides(in *plan.Input, but replica.NodeName) (n int) {
	for name := range in.Nodes {
		if _, connected := in.Current(name); connected && name != but && se.known.admissible(name) {
			n += se.seats(in).free(name)
		}
	}
	return n
}

const (
	// maxLooks is at how many places a step looks for vacant ranks, all together: some tens of milliseconds. The driver has other jobs.
	maxLooks = 1 << 18
	// looksAgain is when the ranks that are left then have their turn.
	looksAgain = time.Millisecond
)

// roomElsewhere tells whether the node that a rank is offered to is short of something, and another one has a process for the rank. The process
// that waits there stays, and gets the rank if it finds what it lacks first.
func (se *seating) roomElsewhere(in *plan.Input, s *seats, r replica.Rank, o *offering) bool {
	if in.Reports[o.node].Short == "" || s.looks >= maxLooks {
		return false
	}
	but := *o
	but.tried = map[replica.NodeName]bool{o.node: true}
	for n := range o.tried {
		but.tried[n] = true
	}
	_, ok := se.pickNode(in, s, r, &but)
	return ok
}
