package control

import (
	"container/list"

	"github.com/replicad/replicad/internal/wire"
)

const (
	// LinkQueue is how many frames of what is nobody's may wait on a link: the state, beats, answers to operators. A link that has more is closed.
	LinkQueue = 1024
	// laneCredits is how many messages of one job stand in the line of all. Further ones wait in the job's own lane, and others pass them.
	laneCredits = 64
	// laneMost is how many wait there. A node has 1,024 sessions, each with one question under way: whoever has more loses what is his own.
	laneMost = 4096
)

// queue is what waits to be written on a link. What is of a job never fills it: a job has a few places in the line, and what else it sends
// waits until those are written. Messages of a job stay in order; those of others, and of nobody, may pass them.
type queue struct {
	line   *list.List // of *waiting
	frames int        // of nobody's
	lanes  map[any]*lane
	now    [][]byte // of the message that is being written
}

// waiting is a message in a queue.
type waiting struct {
	of     any // whose it is; nil: nobody's
	kind   wire.Kind
	offers *Offers // encoded when it is written: more may be added
	frames [][]byte
}

// lane is one job's part of a queue.
type lane struct {
	standing int // in the line
	waits    []*waiting
	newest   map[wire.Kind]*waiting // standing or waiting, of the kinds of which the newest makes the others void
}

func newQueue() queue { return queue{line: list.New(), lanes: map[any]*lane{}} }

// put takes a message in; full: it has no place.
func (q *queue) put(m *waiting, newest bool) (full bool) {
	if m.of == nil {
		if q.frames+len(m.frames) > LinkQueue {
			return true
		}
		q.frames += len(m.frames)
		q.line.PushBack(m)
		return false
	}
	l := q.lanes[m.of]
	if l == nil {
		l = &lane{newest: map[wire.Kind]*waiting{}}
		q.lanes[m.of] = l
	}
	if newest {
		if old := l.newest[m.kind]; old != nil {
			old.becomes(m)
			return false
		}
	}
	switch {
	case l.standing < laneCredits && len(l.waits) == 0:
		l.standing++
		q.line.PushBack(m)
	case len(l.waits) >= laneMost && m.kind != KindKept: // what a node keeps is bounded where it is kept
		return true
	default:
		l.waits = append(l.waits, m)
	}
	if newest {
		l.newest[m.kind] = m
	}
	return false
}

// becomes puts a newer message of its job and kind in the place of one that waits: at the back of the line the newest of many would never
// leave. Offers are added to: the node has heard of none of them.
func (w *waiting) becomes(m *waiting) {
	if m.offers != nil {
		all := m.offers.after(*w.offers)
		m.offers = &all
	}
	*w = *m
}

// take is the next frame to be written; nil: none waits.
func (q *queue) take() ([]byte, error) {
	for len(q.now) == 0 {
		front := q.line.Front()
		if front == nil {
			return nil, nil
		}
		m := q.line.Remove(front).(*waiting)
		if m.of == nil {
			q.frames -= len(m.frames)
		} else {
			q.credit(m)
		}
		if m.offers != nil {
			frames, err := inPieces(m.kind, *m.offers)
			if err != nil {
				return nil, err
			}
			m.frames = frames
		}
		q.now = m.frames
	}
	frame := q.now[0]
	q.now = q.now[1:]
	return frame, nil
}

// credit gives a job the place back that one of its messages had in the line.
func (q *queue) credit(m *waiting) {
	l := q.lanes[m.of]
	if l.newest[m.kind] == m {
		delete(l.newest, m.kind)
	}
	if len(l.waits) > 0 {
		q.line.PushBack(l.waits[0])
		l.waits[0] = nil // its frames are not held for as long as the lane waits
		l.waits = l.waits[1:]
		return
	}
	if l.standing--; l.standing == 0 {
		delete(q.lanes, m.of)
	}
}
