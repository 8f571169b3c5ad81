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
//	Closed           committed, whatever is eligible        nothing: nothing new needs a place but a live capture, which takes a free one
//	Planned          committed, the plan's                  all else, pins of the closed epoch too; what was committed before goes last
//
// So two slots are enough in each phase but one: what was committed before (previous) stays beside the committed one, until that has its
// copies, and no candidate gets a place meanwhile. What brings the copies needs no third place: a mirror holds previous and gets the
// committed one, before it takes the candidate (CommittedFirst). A reader (a transfer, the durable writer) may hold any of these and one more. Each reader is bounded by its own progress:
// a transfer that stalls ends. A durable write gives its slot up when a commit has lacked it for 2 s or 10 steps (internal/host/writer, D118).

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
