package durable

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// unreadMost is how many generations of a run may wait to be read back: the next write waits for them.
const unreadMost = 2

// back is what waits to be read back. Since when it does, and whether people know, the job's clocks say.
type back struct {
	unread  []replica.Generation // the oldest first
	listing bool                 // nobody has told this leader yet what lies there unread
	late    bool                 // what is written next was put off for them
	blind   bool                 // people know that nobody reads anything back
}

func (b *back) full() bool { return len(b.unread) >= unreadMost }

// steps names what waits.
func (b *back) steps() string {
	var list []string
	for _, g := range b.unread {
		list = append(list, fmt.Sprint(g.Step))
	}
	return strings.Join(list, ", ")
}

// followBack has the job's clock run while too many generations are unread. A leader that has not listed them does not end what others have seen begin.
func (r *Room) followBack(now time.Duration) {
	switch {
	case r.back.full():
		r.owner.Clocks().Unread(now)
	case !r.back.listing:
		waited, told := r.owner.Clocks().ReadBack()
		if r.back.late = r.back.late || waited; told {
			r.tell("durable writes go on: what was written before is read back%s", r.back.left())
		}
	}
}

// waitText is what status says of a write that is put off.
func (r *Room) waitText(now time.Duration) string {
	switch b := &r.back; {
	case b.full():
		return fmt.Sprintf("; the next one waits for %v until one of the steps %s was read back (readback_rate)", (now - r.owner.Clocks().Unread(now)).Round(time.Second), b.steps())
	case b.listing:
		return "; the next one waits until a new leader has listed what is not read back"
	}
	return ""
}

// putOff tells whether a write that is due waits: so many that were written are not read back yet, or nobody knows how many. What a job ends with, or a person
// asks for, does not wait, and neither does what takes the place of one that is gone.
func (r *Room) putOff(now time.Duration) bool {
	j := r.job
	return (r.back.full() || r.back.listing) && j.Phase == replica.Open && r.asked.IsZero() && r.Durable() == j.Durable && !r.owner.Parted() && r.due(now)
}

// sayBack tells people of a write that is put off for long, and of its end.
func (r *Room) sayBack(now time.Duration) {
	r.followBack(now)
	b, clocks := &r.back, r.owner.Clocks()
	if b.full() && r.putOff(now) && clocks.SayUnread(now) {
		r.tell("%s, at readback_rate; training goes on, and what is newer than step %d is not on disk", recovery.UnreadText(b.steps(), now-clocks.Unread(now)), slices.MaxFunc(b.unread, replica.Generation.Compare).Step)
	}
}

// sayBlind tells people, once, that nobody reads back what is written.
func (r *Room) sayBlind() {
	if r.looks > 0 || r.back.blind {
		return
	}
	r.back.blind = true
	r.tell("warning: the leader's node has no durable tier: what is written is not read back, and nothing older is deleted; set durable_dir or durable there")
}

// left names what still waits.
func (b *back) left() string {
	if len(b.unread) == 0 {
		return ""
	}
	return ", but for step " + b.steps()
}
