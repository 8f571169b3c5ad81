package adoption

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// lookEvery is between two looks at the processes that are awaited.
const lookEvery = 200 * time.Millisecond

// Awaiting tells whether an arena may still come back from a live process.
func (r *Room) Awaiting() bool { return len(r.awaited) > 0 }

// Awaits tells whether a process is to bring back the arena of a rank. A process may have several ranks, of several jobs.
func (r *Room) Awaits(p session.Peer, rank replica.Rank) bool {
	return slices.ContainsFunc(r.awaited, func(e holding.Entry) bool { return from(e, p) && e.Rank == rank })
}

// Key is the name on the list of an arena that a process offers for a rank. False: the process is not to bring that arena.
func (r *Room) Key(p session.Peer, rank replica.Rank, spec shm.Spec) (key string, ok bool) {
	i := slices.IndexFunc(r.awaited, func(e holding.Entry) bool {
		return from(e, p) && e.Rank == rank && spec.Rank == rank && e.Job == spec.Job
	})
	if i < 0 {
		return "", false
	}
	return r.awaited[i].Key, true
}

// from tells whether a listed arena is that of a process.
func from(e holding.Entry, p session.Peer) bool {
	return e.PID == p.PID() && e.Start == p.StartTime()
}

// overdue no longer awaits an arena whose process is gone, nor one whose process stands still: while it is awaited the whole node counts as
// silent. As any rank that stands still the process is killed. It is the one that the list names.
func (r *Room) overdue(now time.Time) (kills []act.Effect) {
	waited := now.Sub(r.since)
	r.awaited = slices.DeleteFunc(r.awaited, func(e holding.Entry) bool {
		if !r.owner.Alive(e.PID, e.Start) {
			return true
		}
		if waited < r.hangFirst {
			return false
		}
		how := "hangs"
		if r.owner.Halted(e.PID, e.Start) {
			how = "is stopped by a signal"
		}
		r.log.Note2(nil, "arena_lost", fmt.Sprintf("process %d of rank %d, which alone has arena %s, has not brought it in %v: it %s, and is killed", e.PID, e.Rank, e.Key, waited.Round(time.Second), how))
		kills = append(kills, act.Kill{Key: e.Key, PID: e.PID, Start: e.Start})
		return true
	})
	return kills
}

// asked no longer awaits an arena from the process that was to get it and asks for one: the daemon died as it handed the arena out, and the keeper
// with it.
func (r *Room) asked(ev Asked) {
	r.awaited = slices.DeleteFunc(r.awaited, func(e holding.Entry) bool {
		never := e.For != "" && e.For == ev.Job && e.Rank == ev.Rank && from(e, ev.Peer)
		if never {
			r.log.Note2(nil, "arena_lost", fmt.Sprintf("arena %s was never handed to its process, which asks for another", e.Key))
		}
		return never
	})
}

// replaces tells whether what a rank sends makes an earlier event needless.
func replaces(ev, old session.Event) bool {
	of, ok := old.(session.Sealed)
	is, seal := ev.(session.Sealed)
	if ok && seal {
		return of.Sealed.Kind == is.Sealed.Kind && of.Sealed.Index == is.Sealed.Index
	}
	return reflect.TypeOf(old) == reflect.TypeOf(ev)
}
