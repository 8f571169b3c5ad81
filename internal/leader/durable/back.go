package durable

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	// unreadMost is how many generations of a run may wait to be read back: the next write waits for them.
	unreadMost = 2
	// backSaid is how long a write has to be put off for people to be told so.
	backSaid = 10 * time.Second
)

// back is what waits to be read back.
type back struct {
	unread []replica.Generation // the oldest first
	since  time.Duration        // when there were too many
	late   bool                 // a write is due, and was put off for them
	said   bool                 // people know
	blind  bool                 // people know that nobody reads anything back
}

func (b *back) learn(now time.Duration, unread []replica.Generation) {
	if b.full() || len(unread) < unreadMost {
		b.unread = unread
		return
	}
	b.unread, b.since = unread, now
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

// text is what status says of a write that is put off.
func (b *back) text(now time.Duration) string {
	if !b.full() {
		return ""
	}
	return fmt.Sprintf("; the next one waits for %v until one of the steps %s was read back (readback_rate)", (now - b.since).Round(time.Second), b.steps())
}

// next is when people are to be told.
func (b *back) next() (time.Duration, bool) { return b.since + backSaid, !b.said }

// putOff tells whether a write that is due waits: so many that were written are not read back yet. What a job ends with, or a person asks for, does not wait,
// and neither does what takes the place of one that is gone.
func (r *Room) putOff(now time.Duration) bool {
	j := r.job
	return r.back.full() && j.Phase == replica.Open && r.asked.IsZero() && r.Durable() == j.Durable && !r.owner.Parted() && r.due(now)
}

// sayBack tells people of a write that is put off for long, and of its end.
func (r *Room) sayBack(now time.Duration) {
	b := &r.back
	switch {
	case r.putOff(now):
		if b.late = true; b.said || now < b.since+backSaid {
			return
		}
		b.said = true
		r.tell("durable writes wait: steps %s are written, and none of them was read back for %v, at readback_rate; training goes on, and what is newer than step %d is not on disk", b.steps(), (now - b.since).Round(time.Second), slices.MaxFunc(b.unread, replica.Generation.Compare).Step)
	case b.said && !b.full():
		b.said = false
		r.tell("durable writes go on: what was written before is read back%s", b.left())
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
