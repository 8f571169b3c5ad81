package recovery

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// Bytes that are bad (protocol section 6, Condemned). A copy that fails its digest is given up by its node and named in the
// node's report; the others serve. Only a generation that can't be had whole any more, or whose bytes are bad although their
// digests are right, is excluded from the job's history.

// loadFailures is how many processes must fail to load a generation before its bytes are blamed: the first may be the
// process's, or its device's, and takes the process rung.
const loadFailures = 2

// learnRejected takes a rank's word against the generation it has just loaded.
func (tr *trust) learnRejected(ev Rejected) {
	if tr.known.job == nil || tr.known.job.Phase != replica.Planned || ev.Epoch != tr.known.job.Epoch || !claims(tr.known.job.Job, ev.Rank, ev.Incarnation) {
		return // of an epoch that was closed meanwhile: what it says is asked again at the next load
	}
	tr.blame(tr.known.job.Plan.Generation, fmt.Sprintf("rank %d rejects it: %s", ev.Rank, ev.Why))
}

// learnLoadFailure counts the processes that loaded other bytes than the plan names.
func (tr *trust) learnLoadFailure(f replica.Fault) {
	if f.Kind != replica.BadDigest || f.OfNode() || tr.known.job == nil || tr.known.job.Phase != replica.Planned || f.Epoch != tr.known.job.Epoch || !claims(tr.known.job.Job, f.Rank, f.Incarnation) {
		return
	}
	g := tr.known.job.Plan.Generation
	if tr.failed[g] == nil {
		tr.failed[g] = make(map[replica.Incarnation]bool)
	}
	tr.failed[g][f.Incarnation] = true
	if n := len(tr.failed[g]); n >= loadFailures {
		tr.blame(g, fmt.Sprintf("%d processes could not load it; the last: %s", n, f.Detail))
	}
}

func claims(j *replica.Job, r replica.Rank, i replica.Incarnation) bool {
	return int(r) < len(j.Ranks) && j.Ranks[r].Incarnation == i
}

// blame has a generation condemned until the state machine says that it is.
func (tr *trust) blame(g replica.Generation, why string) {
	if _, known := tr.blamed[g]; !known {
		tr.blamed[g] = why
	}
}

// condemn proposes what is blamed, and asks for what has become of it.
func (tr *trust) condemn() {
	for _, g := range slices.SortedFunc(maps.Keys(tr.blamed), newer) {
		if slices.Contains(tr.known.job.Condemned, g) {
			delete(tr.blamed, g)
			delete(tr.failed, g)
			continue
		}
		tr.outbox.propose(replica.Condemn{Job: tr.known.id, Generation: g, Reason: tr.blamed[g]})
	}
}

// badCopies gives up a plan that can't be carried out because every copy of some part was found bad. Where they lay in memory
// that is an event of the rank that can't go on: the next plan sees what is left, and waits for recorded holders as ever.
// What lay on disk condemns the generation, or it would be planned again.
func (l *Leader) badCopies(in *PlanInput, p *replica.Plan) (given bool) {
	for _, src := range p.Sources {
		culprits := in.badHolders(p.Generation, src)
		if len(culprits) == 0 {
			continue
		}
		what := fmt.Sprintf("%v of %v with root %v", src.Part, p.Generation, src.Root)
		l.outbox.note("bad-copy", fmt.Sprintf("the copy of %s on %s failed its digest: it was given up", what, nodeNames(culprits)), map[string]string{"part": src.Part.String()})
		if in.servable(p.Generation, src) {
			continue
		}
		given = true
		if src.Tier == replica.Disk {
			l.trust.blame(p.Generation, fmt.Sprintf("the durable copy of %s failed its digest", what))
			continue
		}
		r := loaderOf(l.known.job.Layout, src.Part)
		l.known.learnFault(replica.Fault{Epoch: l.known.job.Epoch, Kind: replica.Exception, Rank: r, Incarnation: l.known.job.Ranks[r].Incarnation,
			Detail: fmt.Sprintf("no good copy is left of %s: those on %s failed their digest", what, nodeNames(culprits))})
	}
	if given {
		l.trust.condemn()
		l.assertFaults()
	}
	return given
}

// badHolders are the nodes that report the planned copies of a part as bad: those in memory, or the one on disk.
func (in *PlanInput) badHolders(g replica.Generation, src replica.Source) (out []replica.Holder) {
	if in.bad == nil {
		in.bad = []replica.NodeReport{}
		for _, n := range slices.Sorted(maps.Keys(in.Reports)) {
			if rep, ok := in.current(n); ok && len(rep.Bad)+len(rep.BadDisk) > 0 {
				in.bad = append(in.bad, rep)
			}
		}
	}
	for _, rep := range in.bad {
		bad := rep.Bad
		if src.Tier == replica.Disk {
			bad = rep.BadDisk
		}
		if slices.ContainsFunc(bad, func(h replica.Held) bool {
			return h.Part == src.Part && h.Generation == g && h.Root == src.Root
		}) {
			out = append(out, rep.Holder)
		}
	}
	return out
}

// servable tells whether some holder of a planned part may still give it: it holds it, or has not said that it doesn't.
func (in *PlanInput) servable(g replica.Generation, src replica.Source) bool {
	for _, h := range src.Holders {
		rep, ok := in.current(h.Node)
		if !ok || rep.Holder != h {
			if !in.record().holderGone(h) {
				return true // away, and no evidence against it
			}
			continue
		}
		if slices.ContainsFunc(rep.Parts, func(x replica.Held) bool { return x.Part == src.Part && x.Generation == g && x.Root == src.Root }) {
			return true
		}
	}
	return false
}

// loaderOf is a rank that has to load a part: the lowest.
func loaderOf(l replica.Layout, p replica.Part) replica.Rank {
	if p.Kind == replica.PrivatePart {
		return replica.Rank(p.Index)
	}
	return replica.Rank(slices.Index(l.Groups, replica.GroupID(p.Index)))
}

func nodeNames(holders []replica.Holder) string {
	names := make([]string, len(holders))
	for i, h := range holders {
		names[i] = string(h.Node)
	}
	return strings.Join(names, ", ")
}
