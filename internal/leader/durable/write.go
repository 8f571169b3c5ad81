package durable

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

const (
	patience = 2 * time.Minute        // without a word of progress; then a write is given up and tried with a later generation
	absence  = 5 * time.Second        // for a node that is to write a part and is not linked
	retry    = 100 * time.Millisecond // between tries to name a write: the committed generation may move on meanwhile

	backoff    = time.Second // after the first write that failed
	backoffMax = time.Minute

	longestLateMS = uint64(time.Hour / time.Millisecond) // beyond which nobody needs to know by how much
)

// write is the one under way.
type write struct {
	generation replica.Generation // zero: none was seen
	number     uint64
	parts      map[replica.Part]control.ShardReport
	turns      map[replica.NodeName]time.Duration // when nodes were told that it is their turn
	movedAt    time.Duration                      // when a byte of it was last known to be written
	unended    *replica.EndDurable                // of which the log has not said whether it was applied
	trouble    string                             // what a node said last that keeps its store from taking a part
	said       []replica.Remark                   // by ranks and launchers of all nodes
}

// changed takes the job's record. A write that it names begins, and one that it names no more is over.
func (r *Room) changed(now time.Duration, job *replica.Job) {
	r.pace.changed(now, r.job, job)
	r.job = job
	r.fulfil()
	w := job.Writer
	if w != nil && w.Generation == r.write.generation && w.Number == r.write.number {
		return
	}
	r.over(now)
	if w != nil {
		r.write = write{generation: w.Generation, number: w.Number, parts: map[replica.Part]control.ShardReport{}, turns: map[replica.NodeName]time.Duration{}, movedAt: now, unended: r.write.unended}
	}
}

// fulfil takes note of what was asked for and is done, or will never be.
func (r *Room) fulfil() {
	there := r.asked.Compare(r.job.Durable) <= 0
	if r.asked.IsZero() || !there && r.job.Phase != replica.Ended {
		return
	}
	if there && r.keep != "" && r.kept != r.job.Durable { // it was written before anybody asked
		r.do(Pin{r.job.Durable, r.keep})
	}
	r.asked, r.keep = replica.Generation{}, ""
}

// over takes note of a write that has ended. After one that failed the next waits, longer each time: what ails a disk takes a person, and
// each try writes the parts again. People are told that writes fail, or work again.
func (r *Room) over(now time.Duration) {
	of := r.write.generation
	r.write = write{unended: r.write.unended}
	switch {
	case of.IsZero():
	case of == r.job.Durable:
		if r.failing > 0 || r.ailing {
			r.tell("durable writes work again: step %d is written", r.job.Durable.Step)
		}
		r.failed, r.failing, r.ailing, r.why, r.path.absent = 0, 0, false, "", replica.Generation{}
		r.sayBlind()
		r.path.lookAt = now
	default:
		r.failedOnce(now)
	}
}

// fence takes in that another fleet goes on with the run. Nothing of this one is written any more: people are told so, and training goes on.
func (r *Room) fence(is bool) {
	if is && !r.fenced {
		r.fenced = true
		r.do(Over{})
		r.tell("warning: durable writes end: %s; training goes on", r.why)
	}
}

// failedOnce takes note of a write that failed, or could not begin.
func (r *Room) failedOnce(now time.Duration) {
	r.path.lookAt = 0 // what made it fail may have taken the earlier ones along
	if r.failing == 0 && !r.fenced {
		training := ""
		if r.job.Phase == replica.Open {
			training = "training goes on, and "
		}
		r.tell("warning: durable writes fail: %s; %sthey are tried again until they work", cmp.Or(r.why, "replicad status on the leader's node says why"), training)
	}
	r.failing = min(max(2*r.failing, backoff), backoffMax)
	r.triedAt = now
	r.failed++
}

// wanted tells whether a write is due, and not put off.
func (r *Room) wanted(now time.Duration) bool { return r.due(now) && !r.putOff(now) }

// due tells whether a write is due.
func (r *Room) due(now time.Duration) bool {
	j := r.job
	if r.fenced || j.Committed.IsZero() || j.Committed == j.Durable || j.Phase != replica.Open && j.Phase != replica.Closed {
		return false
	}
	if !r.asked.IsZero() {
		return true
	}
	have := r.Durable()
	switch {
	case j.Phase == replica.Open && j.Committed == r.crowded: // it would hold the slot again that the next commit lacks
		return false
	case j.Options.DurableEvery == 0:
		return false
	case j.Phase == replica.Closed: // nothing newer will be committed in this epoch
		return j.Stop != nil || r.owner.Unattended()
	}
	if r.byTime() && j.Committed.Step > j.Start() && (now >= r.dueAt(now) || have != j.Durable) { // its time has come, or what was written is gone
		return true
	}
	return j.Committed.Step > max(have.Step, j.Start()) && r.owner.Parted() || lock.DurableDue(j, have)
}

// byTime tells whether time counts, and not the number of steps.
func (r *Room) byTime() bool {
	return r.job.Options.DurableEvery > 0 && r.job.Options.DurableSteps() == 0
}

// dueAt is when the next write is due by time, as of a time.
func (r *Room) dueAt(now time.Duration) time.Duration {
	return r.pace.last(now) + r.pace.interval(now, r.job.Options)
}

// beginAt is when the next write may begin.
func (r *Room) beginAt() time.Duration {
	return r.triedAt + max(retry, r.failing, r.path.vanishing)
}

// May tells whether a write may begin now, if one is due.
func (r *Room) May(now time.Duration) bool { return !r.fenced && now >= r.beginAt() }

// begin names a write when one is due.
func (r *Room) begin(now time.Duration) {
	if now < r.beginAt() || !r.wanted(now) {
		return
	}
	r.triedAt = now
	r.sayPassed()
	w := lock.PlanShards(r.job, r.owner.Linked)
	if i := slices.IndexFunc(w.Shards, func(s replica.Shard) bool { return s.Node == "" }); i >= 0 { // the log would refuse it each time
		r.why = fmt.Sprintf("no node holds %v of step %d any more", w.Shards[i].Part, w.Generation.Step)
		r.failedOnce(now)
		return
	}
	w.Turns = r.Turns()
	r.do(Propose{replica.BeginDurable{Job: r.job.ID, Write: w}})
}

// sayPassed tells people, once, that something else than the multiple is written.
func (r *Room) sayPassed() {
	defer func() { r.back.late = false }()
	j, every := r.job, r.job.Options.DurableSteps()
	if every == 0 || r.saidPassed || r.back.late || r.failed > 0 || j.Phase != replica.Open || !r.asked.IsZero() || lock.IsMultiple(j, j.Committed.Step) || !lock.DurableDue(j, j.Durable) {
		return
	}
	r.saidPassed = true
	r.tell("step %d was not committed by itself, since ranks had passed it or do not capture it: step %d is written for it, and later ones likewise", j.Committed.Step/every*every, j.Committed.Step)
}

// writing proposes the end of a write anew whose outcome nobody knows, and gives up what takes too long.
func (r *Room) writing(now time.Duration) {
	w := r.job.Writer
	if end := r.write.unended; end != nil {
		r.write.unended = nil
		if end.Generation == w.Generation && end.Number == w.Number {
			r.do(Propose{*end})
		}
	}
	absent := slices.IndexFunc(w.Shards, func(s replica.Shard) bool { return !r.owner.Linked(s.Node) })
	switch idle := now - r.write.movedAt; {
	case absent >= 0 && idle > absence:
		s := w.Shards[absent]
		r.why = fmt.Sprintf("node %s is to write %v and has no link to the leader", s.Node, s.Part)
	case idle > patience:
		r.why = fmt.Sprintf("generation %v: no byte of it was written for %v", w.Generation, patience)
		if r.write.trouble != "" {
			r.why += ": " + r.write.trouble
		}
	default:
		r.turns(now)
		return
	}
	r.write.movedAt = now
	r.end(false)
}

func (r *Room) end(done bool) {
	r.do(Propose{replica.EndDurable{Job: r.job.ID, Generation: r.job.Writer.Generation, Number: r.job.Writer.Number, Done: done}})
}

// shard takes a node's report of a part that it writes. Once all parts are written the marker is ordered.
func (r *Room) shard(now time.Duration, ev Shard) {
	if r.job == nil || r.job.Writer == nil || r.job.Writer.Number != ev.Number || r.job.Writer.Generation != ev.Generation {
		return
	}
	w := r.job.Writer
	for _, p := range append([]replica.Part{ev.Part}, ev.Also...) {
		if !slices.ContainsFunc(w.Shards, func(s replica.Shard) bool { return s.Part == p && s.Node == ev.From }) {
			return // not this node's part to write
		}
	}
	switch {
	case ev.Ails != "":
		r.troubled(ev)
	case ev.Written > 0:
		r.write.movedAt = now // a part of gigabytes takes as long as its disk does
		if ev.LateMS > 0 {
			late := time.Duration(min(ev.LateMS, longestLateMS)) * time.Millisecond
			r.do(Late{recovery.Writing{Node: ev.From, Part: ev.Part, Generation: ev.Generation, Bytes: ev.Written, Late: late}})
		}
	case ev.Failed != "":
		r.do(Log{fmt.Sprintf("shard %v of generation %v by node %s", ev.Part, ev.Generation, ev.From), ev.Failed})
		r.why = fmt.Sprintf("node %s, %v of generation %v: %s", ev.From, ev.Part, ev.Generation, ev.Failed)
		r.fence(ev.Fenced)
		if ev.Crowded {
			r.crowded = r.job.Committed
		}
		r.end(false)
	default:
		for _, p := range append([]replica.Part{ev.Part}, ev.Also...) {
			r.write.parts[p] = ev.ShardReport
		}
		if w.Turns {
			r.write.movedAt = now
			delete(r.write.turns, ev.From)
		}
		r.mark()
	}
}

// troubled takes in that a store does not do what a node asks it for. The write goes on: people are told before it fails, and once.
func (r *Room) troubled(ev Shard) {
	why := fmt.Sprintf("node %s, %v of generation %v: %s", ev.From, ev.Part, ev.Generation, ev.Ails)
	if r.write.trouble == "" {
		r.do(Log{fmt.Sprintf("shard %v of generation %v by node %s is held up", ev.Part, ev.Generation, ev.From), ev.Ails})
	}
	if r.failing == 0 && !r.ailing {
		r.tell("warning: a durable write is held up: %s", why)
	}
	r.why, r.write.trouble, r.ailing = why, why, true
}

// mark orders the commit marker where all parts are written.
func (r *Room) mark() {
	w := r.job.Writer
	order := control.MarkerOrder{Job: r.job.ID, Generation: w.Generation, Number: w.Number}
	for _, s := range w.Shards {
		have, ok := r.write.parts[s.Part]
		if !ok {
			return
		}
		if have.Part == s.Part { // once for all parts of a file
			order.Shards = append(order.Shards, have)
		}
	}
	order.Lacks, order.Said = r.owner.Lacks(w.Generation), r.write.said
	if !r.asked.IsZero() && r.asked.Compare(w.Generation) <= 0 {
		if order.Keep = r.keep; r.keep != "" {
			r.kept = w.Generation
		}
	}
	r.do(Mark{w.Writer, order})
}

// said takes what the ranks and launchers of a node say of the generation that is being written.
func (r *Room) said(ev Said) {
	if r.job == nil || r.job.Writer == nil || r.job.Writer.Number != ev.Number || r.write.number != ev.Number {
		return
	}
	var over []replica.Remark
	r.write.said, over = replica.Merge(slices.Concat(r.write.said, ev.SaidReport.Said))
	if len(over) > 0 && !r.overfull {
		r.overfull = true
		r.tell("warning: ranks say more than %d of one kind, and checkpoints are written without %v %q, for example", replica.MaxRemarks, over[0].Kind, over[0].Name)
	}
}

// marked takes what the writer says of the marker.
func (r *Room) marked(ev Marked) {
	if r.job == nil || r.job.Writer == nil || r.job.Writer.Number != ev.Number || r.job.Writer.Generation != ev.Generation || r.job.Writer.Writer != ev.From {
		return
	}
	if ev.Failed != "" {
		r.do(Log{fmt.Sprintf("commit marker of generation %v by node %s", ev.Generation, ev.From), ev.Failed})
		r.why = fmt.Sprintf("node %s: %s", ev.From, ev.Failed)
		r.fence(ev.Fenced)
	}
	r.end(ev.Failed == "")
}
