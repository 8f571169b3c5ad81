package plan

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// DisputeMemory is within how many steps a further dispute counts as the same trouble: a state that went wrong once, and was
// agreed upon a thousand times since, went wrong by accident.
const DisputeMemory replica.Step = 1000

// Disputes are those of the newest epoch that was opened, while no other has been opened since: what is planned answers them.
func Disputes(j *replica.Job) (out []replica.Dispute) {
	if j.Phase != replica.Closed && j.Phase != replica.Planned {
		return nil
	}
	for _, d := range j.Disputed {
		if d.Generation.Epoch == j.Lineage.Last().Epoch && d.Generation.Epoch != 0 && len(d.Votes) > 0 {
			out = append(out, d)
		}
	}
	return out
}

// alike are the disputes of the group that count together with d, that itself last.
func alike(j *replica.Job, d replica.Dispute) (out []replica.Dispute) {
	for _, o := range j.Disputed {
		if o.Group == d.Group && o.Majority() == d.Majority() && o.Generation.Epoch <= d.Generation.Epoch &&
			o.Generation.Step+DisputeMemory > d.Generation.Step {
			out = append(out, o)
		}
	}
	return out
}

// times are the disputes that count, the first of each epoch: a state that went wrong once may show at several steps before its epoch
// closes. Counted by steps, a rank would be outvoted "again", or a split go to the durable tier, before anything was tried.
func times(list []replica.Dispute) (out []replica.Dispute) {
	for _, d := range list {
		if !slices.ContainsFunc(out, func(o replica.Dispute) bool { return o.Generation.Epoch == d.Generation.Epoch }) {
			out = append(out, d)
		}
	}
	return out
}

// Doubtful tells whether a part of a group whose ranks have just disagreed rests on the word of one of them: whose state went
// wrong may have done so before the step at which it was seen, while the others skipped a capture.
func Doubtful(j *replica.Job, lots []Lot) bool {
	all := Disputes(j)
	return slices.ContainsFunc(lots, func(l Lot) bool {
		return l.Unvouched && slices.ContainsFunc(all, func(d replica.Dispute) bool { return l.Part == replica.OfGroup(d.Group) })
	})
}

// Split finds a dispute that must be answered and has no majority, and how many like it there have been.
func Split(j *replica.Job) (worst replica.Dispute, most int) {
	for _, d := range Disputes(j) {
		if n := len(times(alike(j, d))); !d.Majority() && n > most {
			worst, most = d, n
		}
	}
	return worst, most
}

// Named are the disputes like d in which a majority outvoted a rank, oldest first.
func Named(j *replica.Job, d replica.Dispute, r replica.Rank) []replica.Dispute {
	return times(slices.DeleteFunc(alike(j, d), func(o replica.Dispute) bool { return !slices.Contains(o.Suspects, r) }))
}

// voidGroups are the parts of which a quarantined node's copies are void: those of the groups in which a majority outvoted a rank
// that ran there. Copies under a root that Raft names serve all the same, and so does what the node holds of others.
func voidGroups(j *replica.Job, n replica.NodeName) map[replica.Part]bool {
	if !slices.Contains(j.Quarantined, n) {
		return nil
	}
	void := make(map[replica.Part]bool)
	for _, d := range j.Disputed {
		if d.Majority() && slices.ContainsFunc(d.Suspects, func(r replica.Rank) bool { return d.Vote(r).Node == n }) {
			void[replica.OfGroup(d.Group)] = true
		}
	}
	return void
}

// fromDurable plans for a group that disagreed again without a majority: from the durable tier, once, and then not at all.
func (in *Input) fromDurable(st stock, d replica.Dispute, times int) (choice, Verdict, bool) {
	why := fmt.Sprintf("the ranks of group %d disagreed %d times within %d steps and no root has a majority", d.Group, times, DisputeMemory)
	scan := !in.Scanned
	stuck := func(tail string) (choice, Verdict, bool) {
		return choice{}, Verdict{Kind: Stuck, Final: true, Reason: why + tail, Disputed: &d}, false
	}
	switch {
	case times > 2:
		return stuck("; going back to the last agreed step, and to the durable tier, did not help")
	case in.Job.Options.DurableEvery == 0 && in.Job.Durable.IsZero():
		return stuck("; going back to the last agreed step did not help, and the durable tier is off")
	case scan && in.Unread == "":
		return choice{}, Verdict{Kind: Wait, Why: ForScan, Scan: true, Reason: why + "; searching the durable tier"}, false
	case scan:
		return choice{}, Verdict{Kind: Wait, Why: ForScan, Scan: true, Reason: fmt.Sprintf("%s; the durable tier can't be read, it is tried again: %s", why, in.Unread)}, false
	}
	c, ok := in.fromDisk(st, replica.Generation{}, false)
	if !ok {
		return stuck("; going back to the last agreed step did not help, and the durable tier has no valid generation" + in.wrongWith())
	}
	c.reason = why + "; " + c.reason
	return c, Verdict{}, true
}

// Dispute is an initial state that ranks of a group sealed differently.
type Dispute struct {
	Part    replica.Part
	Gen     replica.Generation
	Between [2]Sealed // the lowest rank's, and the first that differs from it
	Roots   string    // of all who sealed it
}

func (d *Dispute) String() string {
	a, b := d.Between[0], d.Between[1]
	return fmt.Sprintf("initial state of %v differs between rank %d (%s) and rank %d (%s)", d.Part, a.Held.Rank, a.Holder.Node,
		b.Held.Rank, b.Holder.Node)
}
