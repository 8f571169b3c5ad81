package lock

import (
	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/replica"
)

// The slot budget: which generations an arena may have to hold at once, and what gives way where they are more than its slots.
//
//	phase            needed                                 gives way
//	Opening          the initial one                        what an opening sealed that was closed
//	Open             committed, candidate                   all else; while what was committed before stays, the candidate waits for it
//	  two slots,     committed, the candidate if         a candidate of whose copy here no leader was told, then what was
//	  unasked        any leader was told of it here      captured in its place, before each sixteenth step
//	  three slots    as Open                             the one for freshness, before each sixteenth step
//	Closed           committed, whatever is eligible        nothing: nothing new needs a place but a live capture, which takes a free one
//	Planned          committed, the plan's                  all else, pins of the closed epoch too; what was committed before goes last
//
// So two slots are enough in each phase but one: what was committed before (previous) stays beside the committed one, until that has its
// copies, and no candidate gets a place meanwhile. What brings the copies needs no third place: a mirror holds previous and gets the
// committed one, before it takes the candidate (CommittedFirst). A reader (a transfer, the durable writer) may hold any of these and one more. Each reader is bounded by its own progress:
// a transfer that stalls ends. A durable write gives its slot up when a commit has lacked it for 2 s or 10 steps (internal/host/writer, D118).

// Unasked: no leader has asked for the candidate for holder_grace. The job trains on, and with two slots nothing newer would be captured: a fault would
// cost all steps since. A leader commits a generation only once the node of each rank has told it of that rank's copies. So a candidate of whose
// copy no leader was told is not committed, and never will be once the copy is gone: the rank answers that it has passed it.
//
// A candidate that some leader was told of stays, however long that was ago: the commit may be in the log of a majority that this node does not reach. Counterexample:
// nodes a and b tell of (1,27), the leader commits it, and both lose the majority. With (1,27) given up on both, a fault of either is followed by the
// news that (1,27) is committed, which nobody holds. So two slots have a price (D171); a third one captures anew meanwhile.

// shelterEvery is how many steps lie between two captures that make way for each other, where there is one slot for them. While the next one is
// captured there is none, so that they are few; all ranks take the same steps.
const shelterEvery = 16

// shelterSteps is that number for a job: each is captured for freshness too.
func shelterSteps(j *replica.Job) replica.Step {
	c := max(Cadence(j), 2)
	return (shelterEvery + c - 1) / c * c
}

// Shelter is the step that a rank of an arena with two slots is to capture next, while no leader asks for the candidate, and which its own place may be
// freed for; 0: none yet.
func Shelter(in RetainInput) replica.Step {
	r := newRetention(in)
	if at := r.good.Step + 1; r.shelters() && r.good.Epoch == in.Job.Epoch && at%shelterSteps(in.Job) == 0 && at > in.Job.Position.Step {
		return at
	}
	return 0
}

// shelters tells whether a rank with two slots captures anew though the candidate waits.
func (r *retention) shelters() bool {
	return r.in.Unasked && r.in.Job.Phase == replica.Open && r.slots == 2 && r.below.IsZero() && r.named() && !r.in.Stands
}

// givesWay tells whether a generation is given up for the next capture of this kind: it is about to come, and a good deal newer.
func (r *retention) givesWay(g replica.Generation) bool {
	every, next := shelterSteps(r.in.Job), r.good.Step+1
	return r.good.Epoch == g.Epoch && next%every == 0 && g.Step+every/2 <= next && !r.in.Stands
}

// PinHolds tells whether pins for a candidate still mean anything: those of an epoch that was closed and planned over do not. The plan
// resumes at a generation that is sealed, and commits start anew there.
func PinHolds(j *replica.Job, candidate replica.Generation) bool {
	return candidate.Epoch >= j.Epoch || planted.Slots
}

// CommittedFirst tells whether the candidate must wait for a place in an arena: what was committed before stays there, what is committed has not
// come yet, and no second place is left. With the candidate in it no node would ever give up what was before, and where that takes the other
// slot of a rank, the candidate could not be captured there.
func CommittedFirst(in RetainInput) bool {
	before := previous(in.Job)
	if in.Job.Phase != replica.Open || before.IsZero() {
		return false
	}
	left := 0
	for _, p := range in.Places {
		switch {
		case p.Ring:
		case p.State == replica.SlotSealed && p.Generation == in.Job.Committed:
			return false
		case p.State == replica.SlotSealed && (p.Generation == before || p.Generation == in.Candidate):
		default:
			left++
		}
	}
	return left < 2
}

// Needed tells whether a part of a generation may be needed on a node that is asked to take it: it is what is committed, what is to be, what
// the job resumes at, or what stays beside that. A transfer of any other part gives its place to one that is needed.
func Needed(j *replica.Job, candidate, g replica.Generation) bool {
	if g == j.Committed || g == candidate || j.Plan != nil && g == j.Plan.Generation {
		return true
	}
	return j.Phase != replica.Open || !previous(j).IsZero() && g == previous(j)
}
