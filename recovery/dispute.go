package recovery

import (
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// Disputes after the opening (protocol section 5.3). What is decided about them is a function of the job's record alone, so that
// the next leader goes on where the last one stopped.
//
//	majority     first time    the rank's node is quarantined if others can take its ranks, else its process is started anew
//	             again         on the same node: it is quarantined now, if others can take its ranks; else the job ends
//	none         first time    back to the last agreed step
//	             second time   back to the durable tier
//	             again         the job ends

// Codes of the notes that say what ranks disagree about, and what becomes of them: people at the launchers read those too.
const (
	NoteDispute = "dispute"
	NoteRegions = "dispute-regions"
)

// votesShown bounds the ranks that a message names.
const votesShown = 64

// judge decides what becomes of the ranks that a majority outvoted; hold: nobody may be given a rank before that is recorded.
func (tr *trust) judge(in *plan.Input) (hold bool) {
	kn := tr.known
	for _, d := range plan.Disputes(kn.job.Job) {
		if !d.Majority() {
			continue // the planner's
		}
		for _, r := range d.Suspects {
			v := d.Vote(r)
			if c := kn.job.Ranks[r]; c.Incarnation != v.Incarnation || slices.Contains(kn.job.Quarantined, v.Node) {
				continue // it has been answered
			}
			if _, waiting := in.WaitForAcks(); waiting {
				return true
			}
			votes := plan.Named(kn.job.Job, d, r)
			again := len(votes) - 1
			switch {
			case again <= 1 && votes[0].Vote(r).Node == v.Node && odds.CanLeave(in, v.Node):
				tr.noteDispute(d, r, fmt.Sprintf("%s; node %s is quarantined for this job", describe(d), v.Node))
				tr.outbox.propose(replica.Quarantine{Job: kn.id, Node: v.Node})
				hold = true
			case again == 0:
				tr.noteDispute(d, r, fmt.Sprintf("%s; no other node can take the ranks of node %s: rank %d is started anew there",
					describe(d), v.Node, r))
			default:
				tr.endDisputed(d, fmt.Sprintf("rank %d was outvoted %d times within %d steps, at steps %s", r, len(votes),
					plan.DisputeMemory,
					placesOf(votes, r)))
				return true
			}
		}
	}
	return hold
}

// noteDispute says once what becomes of a rank in a dispute: a state that went wrong shows at several steps, which would be told in turn at each look.
func (tr *trust) noteDispute(d replica.Dispute, r replica.Rank, text string) {
	if key := fmt.Sprintf("%s of rank %d at %v", NoteDispute, r, d.Generation); tr.outbox.noted[key] != text {
		tr.outbox.noted[key] = text
		tr.outbox.send(Note{NoteDispute, text, nil})
	}
}

// placesOf says where a rank was outvoted, by step and node.
func placesOf(list []replica.Dispute, r replica.Rank) string {
	var out []string
	for _, d := range list {
		out = append(out, fmt.Sprintf("%d on %s", d.Generation.Step, d.Vote(r).Node))
	}
	return strings.Join(out, ", ")
}

// endDisputed ends the job over a dispute, once the daemons have said in which regions the states differ, or can't.
func (tr *trust) endDisputed(d replica.Dispute, why string) {
	regions, done := tr.nameRegions(betweenVotes(d))
	if !done {
		tr.outbox.note("waiting", why+"; two daemons compare the regions", map[string]string{"why": "regions"})
		return
	}
	reason := plan.DoNotRequeue + disputeReason(d, why, regions)
	tr.outbox.note("stuck", reason, nil)
	tr.outbox.propose(replica.EndJob{Job: tr.known.id, Reason: reason, Keep: true})
}

func disputeReason(d replica.Dispute, why, regions string) string {
	return fmt.Sprintf("%s: %s; %s; roots: %s; remedy: %s", describe(d), why, differ(regions), rootsOf(d), remedyOf(d))
}

// remedyOf says what people can do about a dispute.
func remedyOf(d replica.Dispute) string {
	remedy := "look at the memory and the device of the named ranks' nodes (replicad node lost or drain takes a node away)"
	if !d.Majority() {
		remedy = "look for what computes differently on them, and for what changes their values outside of session.step() (its warnings name it; with debug=True every tensor is hashed), or declare the group with --nondeterministic; a group of three or more ranks can outvote one"
	}
	return remedy
}

// differ makes a clause of what nameRegions says.
func differ(regions string) string {
	switch {
	case strings.HasPrefix(regions, "in which "):
		return regions
	case strings.HasPrefix(regions, "in "):
		return "they differ " + regions
	}
	return "they differ in " + regions
}

// describe says who disagrees about what.
func describe(d replica.Dispute) string {
	var who []string
	for _, r := range d.Suspects[:min(len(d.Suspects), votesShown)] {
		who = append(who, fmt.Sprintf("rank %d (%s)", r, d.Vote(r).Node))
	}
	if d.Majority() {
		return fmt.Sprintf("group %d, step %d of epoch %d: %s disagrees with the majority of the group", d.Group, d.Generation.Step, d.Generation.Epoch, strings.Join(who, ", "))
	}
	return fmt.Sprintf("group %d, step %d of epoch %d: %s disagree, and no root has a majority", d.Group, d.Generation.Step, d.Generation.Epoch, strings.Join(who, ", "))
}

// rootsOf names every rank with its root, to a bound.
func rootsOf(d replica.Dispute) string {
	var out []string
	for _, v := range d.Votes[:min(len(d.Votes), votesShown)] {
		out = append(out, fmt.Sprintf("rank %d on %s: %v", v.Rank, v.Node, v.Root))
	}
	if more := len(d.Votes) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, ", ")
}

// betweenVotes are two ranks whose states differ: the first that is not suspect, or the first at all, and the first that
// differs from it.
func betweenVotes(d replica.Dispute) *plan.Dispute {
	at := func(v replica.Vote) plan.Sealed {
		return plan.Sealed{Holder: replica.Holder{Node: v.Node},
			Held: replica.Held{Part: replica.OfGroup(d.Group), Generation: d.Generation, Root: v.Root, Rank: v.Rank}}
	}
	first := d.Votes[0]
	for _, v := range d.Votes {
		if d.Majority() && !slices.Contains(d.Suspects, v.Rank) {
			first = v
			break
		}
	}
	out := &plan.Dispute{Part: replica.OfGroup(d.Group), Gen: d.Generation, Between: [2]plan.Sealed{at(first), at(first)},
		Roots: rootsOf(d)}
	for _, v := range d.Votes {
		if v.Root != first.Root {
			out.Between[1] = at(v)
			break
		}
	}
	return out
}

// tellRegions tells people, as soon as it is known, in which regions a dispute's states differ; nothing waits for it.
func (tr *trust) tellRegions() {
	all := plan.Disputes(tr.known.job.Job)
	if len(all) == 0 || slices.ContainsFunc(all, func(o replica.Dispute) bool { return o.Group != all[0].Group }) {
		return // of several groups only one that ends the job is looked into: two at once would be asked about in turn for ever
	}
	d := all[0] // what went wrong in it may show at several steps
	if regions, done := tr.nameRegions(betweenVotes(d)); done {
		tr.outbox.note(NoteRegions, describe(d)+": "+differ(regions)+"; remedy: "+remedyOf(d), nil)
	}
}
