package mover

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Moving is how far the newest generation of a part that was pushed over a line has come.
type Moving struct {
	Line       Line
	Part       replica.Part
	Generation replica.Generation
	Bytes      uint64 // the most that any try has sent: one that begins anew is no progress until it comes further
	Why        string // the newest try failed; empty: none has
}

// moved is the account of one pusher: an entry for each part of its line.
type moved struct {
	mu sync.Mutex // guards of
	of map[replica.Part]*Moving
}

func (m *moved) entryLocked(l Line, k transfer.Key) *Moving {
	e := m.of[k.Part]
	if e == nil || e.Generation != k.Generation {
		if m.of == nil {
			m.of = map[replica.Part]*Moving{}
		}
		e = &Moving{Line: l, Part: k.Part, Generation: k.Generation}
		m.of[k.Part] = e
	}
	return e
}

// sent notes how many bytes a try has sent by now.
func (m *moved) sent(l Line, k transfer.Key, bytes uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entryLocked(l, k)
	e.Bytes = max(e.Bytes, bytes)
}

// ended notes the end of a push. One that was broken off here has not failed.
func (m *moved) ended(l Line, k transfer.Key, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrSuperseded) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entryLocked(l, k)
	if e.Why = ""; err != nil {
		e.Why = err.Error()
	}
}

func (m *moved) list(job replica.JobID, g replica.Generation) (out []Moving) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.of {
		if e.Line.Job == job && e.Generation == g {
			out = append(out, *e)
		}
	}
	return out
}

// Moving is the account of a generation of a job, by mirror and part. The caller of Push alone may ask.
func (m *Mover) Moving(job replica.JobID, g replica.Generation) (out []Moving) {
	for _, pu := range m.pushers {
		out = append(out, pu.moved.list(job, g)...)
	}
	slices.SortFunc(out, func(a, b Moving) int {
		return cmp.Or(cmp.Compare(a.Line.Node, b.Line.Node), cmp.Compare(a.Part.Kind, b.Part.Kind), cmp.Compare(a.Part.Index, b.Part.Index))
	})
	return out
}
