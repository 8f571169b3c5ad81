package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

const (
	// regionsNamed bounds how many regions a message names; where all differ the first say as much.
	regionsNamed = 4
	// failedShown bounds what is repeated of a daemon's reason, in bytes: the whole goes into the log.
	failedShown = 256
)

// naming is the search for the regions of a dispute: both daemons hash theirs and say so. For that the whole part is read once more, at some
// GB/s; a program that does not broadcast its state has to be mended anyway.
type naming struct {
	gen     replica.Generation
	between [2]plan.Sealed
	until   time.Duration
	open    bool // an answer is missing
	asked   [2]bool
	said    [2]*replica.RegionReport
}

// nameRegions says in which regions a disputed state differs, or why nobody knows; done is false while it is waited for.
func (tr *trust) nameRegions(d *plan.Dispute) (text string, done bool) {
	kn := tr.known
	n := &tr.naming
	if n.gen != d.Gen || n.between != d.Between {
		*n = naming{gen: d.Gen, between: d.Between}
	}
	for i, s := range n.between {
		if !n.asked[i] && n.said[i] == nil {
			n.asked[i] = true
			tr.outbox.send(AskRegions{Node: s.Holder.Node, Rank: s.Held.Rank, Generation: d.Gen, Part: d.Part, Root: s.Held.Root})
		}
	}
	n.until = kn.clocks.Since(kn.now, replica.Clock{Kind: clockRegions, Epoch: d.Gen.Epoch, Part: d.Part,
		Of: uint64(d.Gen.Step)}) + kn.bound(AwaitRegions)
	n.open = false
	for i, s := range n.between {
		switch {
		case n.said[i] != nil && n.said[i].Failed != "":
			return fmt.Sprintf("in which region is not known: node %s: %s", s.Holder.Node, n.said[i].Failed), true
		case n.said[i] == nil && kn.now >= n.until:
			return fmt.Sprintf("in which region is not known: node %s has not said within %v what its regions hash to", s.Holder.Node,
				kn.bound(AwaitRegions)), true
		}
	}
	if n.said[0] == nil || n.said[1] == nil {
		n.open = true
		tr.outbox.wakeAt(n.until)
		return "", false
	}
	names := replica.Differing(n.said[0].Regions, n.said[1].Regions)
	if len(names) == 0 {
		return "in no region, only in what lies between them or in a flag", true
	}
	var quoted []string
	for _, name := range names[:min(len(names), regionsNamed)] {
		quoted = append(quoted, fmt.Sprintf("%q", name))
	}
	text = "region " + strings.Join(quoted, ", ")
	if more := len(names) - len(quoted); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text, true
}

// learnRegions takes an answer to AskRegions; any other is nobody's question.
func (tr *trust) learnRegions(r replica.RegionReport) {
	tooLong := func(d replica.RegionDigest) bool { return len(d.Name) > replica.MaxRegionName }
	if r.Job != tr.known.id || len(r.Regions) > replica.MaxRegions || slices.ContainsFunc(r.Regions, tooLong) {
		return
	}
	r.Failed = r.Failed[:min(len(r.Failed), failedShown)]
	for i, s := range tr.naming.between {
		if r.Generation == tr.naming.gen && r.Part == s.Held.Part && r.Rank == s.Held.Rank && r.Root == s.Held.Root {
			tr.naming.said[i] = &r
		}
	}
}

// askAgain has a node that has linked anew asked again: question or answer may have gone down with its stream.
func (tr *trust) askAgain(n replica.NodeName) {
	for i, s := range tr.naming.between {
		if s.Holder.Node == n {
			tr.naming.asked[i] = false
		}
	}
}
