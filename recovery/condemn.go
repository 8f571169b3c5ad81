package recovery

import (
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/recovery/plan"
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
	kn := tr.known
	if kn.job == nil || kn.job.Phase != replica.Planned || ev.Epoch != kn.job.Epoch || !claims(kn.job.Job, ev.Rank, ev.Incarnation) {
		return // of an epoch that was closed meanwhile: what it says is asked again at the next load
	}
	tr.blame(kn.job.Plan.Generation, fmt.Sprintf("rank %d rejects it: %s", ev.Rank, ev.Why))
}

// learnLoadFailure counts the processes that loaded other bytes than the plan names.
func (tr *trust) learnLoadFailure(f replica.Fault) {
	kn := tr.known
	if f.Kind != replica.BadDigest || f.OfNode() || kn.job == nil || kn.job.Phase != replica.Planned || f.Epoch != kn.job.Epoch ||
		!claims(kn.job.Job, f.Rank, f.Incarnation) {
		return
	}
	g := kn.job.Plan.Generation
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
	for _, g := range slices.SortedFunc(maps.Keys(tr.blamed), plan.Newer) {
		if slices.Contains(tr.known.job.Condemned, g) {
			delete(tr.blamed, g)
			delete(tr.failed, g)
			continue
		}
		tr.outbox.propose(replica.Condemn{Job: tr.known.id, Generation: g, Reason: tr.blamed[g]})
	}
}
