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
	// laneMost is how many wait there before what processes cause at will is left out. A node has 1,024 sessions, each with one question under
	// way: whoever has more loses what is his own.
	laneMost = 4096
	// laneBytes is how many bytes of these wait there: with what stands in the line, an answer of 32 KiB for each of those sessions.
	laneBytes = 32 << 20
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
	kept   *KVKept // encoded when it is written: a user's whole rendezvous may wait, and lies in the desk as well
	frames [][]byte
}

// lane is one job's part of a queue.
type lane struct {
	standing int // in the line
	waits    []*waiting
	bytes    int                    // that wait, of what processes cause at will
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
	case byKind[m.kind].atWill && (len(l.waits) >= laneMost || l.bytes+m.size() > laneBytes):
		return true
	default:
		l.waits = append(l.waits, m)
		l.bytes += m.size()
	}
	if newest {
		l.newest[m.kind] = m
	}
	return false
}

// size is how many bytes a message counts for: what a node and a leader say of themselves is bounded by what there is to say.
func (w *waiting) size() (n int) {
	if byKind[w.kind].atWill {
		for _, f := range w.frames {
			n += len(f)
		}
	}
	return n
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
		if m.kept != nil {
			frames, err := Encode(ToLeader, *m.kept)
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
		l.bytes -= l.waits[0].size()
		l.waits[0] = nil // its frames are not held for as long as the lane waits
		l.waits = l.waits[1:]
		return
	}
	if l.standing--; l.standing == 0 {
		delete(q.lanes, m.of)
	}
}
