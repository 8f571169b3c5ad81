package launchers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

// Follow has the launchers print the loss that closed an epoch, and later how the job came out of it. What the two lie apart is this
// node's own time.
func (v View) Follow(was *replica.Job, now time.Time) {
	is, b := v.job.Record(), v.job.Launched()
	switch {
	case is.Phase == replica.Open && (was.Phase != replica.Open || was.Epoch != is.Epoch):
		from, took := v.pool.owner.Brought(is.ID, is.Epoch)
		if text := b.recovered(is, from, now); text != "" {
			v.Note(text)
		}
		if p := is.Plan; p != nil && p.Resumed != "" {
			text := "resumed: " + p.Resumed
			if from != 0 {
				text += fmt.Sprintf("; loaded in %.1f s", took.Seconds())
			}
			v.Note(text)
		}
		b.outage = nil
	case room.Over(is):
		b.outage = nil
	case is.Growth != nil: // nothing is lost with the epoch that it closes: the host notes the growth
	case (was.Phase == replica.Open || was.Growth != nil) && is.ClosedEpoch >= was.Epoch && b.outage == nil:
		b.outage = &outage{began: now}
		v.Note(lossText(is))
	}
}

// lossText is why an epoch was closed, and what else is going to be printed because of it.
func lossText(job *replica.Job) string {
	why := differText(job)
	if len(job.Faults) > 0 && why == unnamed { // a fault of the rank that is outvoted comes with the dispute
		f := job.Faults[0]
		who := fmt.Sprintf("rank %d", f.Rank)
		if f.OfNode() {
			who = fmt.Sprintf("node %s", f.Node)
		}
		detail, _, _ := strings.Cut(f.Detail, "\n")
		if why = fmt.Sprintf("%s: %v", who, f.Kind); detail != "" {
			why += ", " + clip(detail)
		}
	}
	return fmt.Sprintf("epoch %d is closed (%s); recovering. Tracebacks of collectives that break now are expected", job.ClosedEpoch, why)
}

// unnamed is what is printed where nothing on record names the ranks that differ.
const unnamed = "ranks differ"

// differText names the ranks that differ, of an epoch that was closed for no fault. The regions are named once their daemons have
// compared them.
func differText(job *replica.Job) string {
	i := slices.IndexFunc(job.Disputed, func(d replica.Dispute) bool { return d.Generation.Epoch == job.ClosedEpoch && len(d.Votes) > 0 })
	if i < 0 {
		return unnamed
	}
	d := job.Disputed[i]
	of := "no root has a majority"
	if d.Majority() {
		of = "the others agree"
	}
	return fmt.Sprintf("ranks differ at step %d: %s of group %d, and %s; the regions in which they do are named next", d.Generation.Step,
		ranksText(d.Suspects), d.Group, of)
}

// ranksText names some ranks.
func ranksText(ranks []replica.Rank) string {
	const most = 8
	list := make([]string, 0, most)
	for _, r := range ranks[:min(len(ranks), most)] {
		list = append(list, fmt.Sprint(r))
	}
	if more := len(ranks) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return plural(replica.Step(len(ranks)), "rank") + " " + strings.Join(list, ", ")
}

// recovered is where the job goes on, from which tier that ranks here needed, and at what cost, which is the plan's to name. Empty: this
// node saw no loss, and no committed step is gone.
func (b *Book) recovered(job *replica.Job, tier replica.Tier, now time.Time) string {
	plan := job.Plan
	if plan == nil || b.outage == nil && plan.CommittedLost == 0 {
		return ""
	}
	if tier == 0 {
		tier = plan.Tier()
	}
	from := map[replica.Tier]string{replica.OwnRAM: "own memory", replica.PeerRAM: "other nodes' memory", replica.Disk: "disk"}[tier]
	text := fmt.Sprintf("recovered: step %d from %s, %d %s lost", job.Position.Step, from, plan.StepsLost, plural(plan.StepsLost, "step"))
	if b.outage != nil {
		text += fmt.Sprintf(", %.1f s", now.Sub(b.outage.began).Seconds())
	}
	if back := plan.WentBack(); back != "" {
		text += "; warning: the job " + back
	}
	return text
}

func plural(n replica.Step, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
