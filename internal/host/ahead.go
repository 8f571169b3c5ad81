package host

import (
	"context"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// What lies here already counts in a restore only if it was read again since the fence (protocol section 6, Restore). Reading takes a third
// of a second a gigabyte, and a recovery mostly has that time before its plan: while the program of a lost rank starts. So the newest
// generation of each arena is read as soon as the job is closed, and a restore that wants it finds it read, or waits for the rest.

// reading is one place read ahead. Owned by the host, but for done and good.
type reading struct {
	word replica.SlotWord // of the place when it began
	done chan struct{}
	good bool // to be read once done is closed
}

// arenaPlace is a place of one of a job's arenas.
type arenaPlace struct {
	arena *holding.Arena
	place shm.Place
}

// readAhead begins to read what a plan is most likely to name: of each rank's arena the newest generation that is whole there, where that is
// not older than the committed one. One place of an arena at a time.
func (h *Host) readAhead(lj *localJob) {
	if lj.job.Phase == replica.Open {
		clear(lj.ahead)
	}
	if lj.job.Phase != replica.Closed || lj.fenced < lj.job.ClosedEpoch {
		return
	}
	for r, lr := range lj.ranks {
		if lj.readingOf(lr.arena) {
			continue
		}
		if c, ok := lj.unread(lr); ok {
			rd := &reading{word: lr.arena.Word(c.Place), done: make(chan struct{})}
			lj.ahead[arenaPlace{c.Arena, c.Place}] = rd
			held, id := c.Held, lj.job.ID
			held.Rank = r
			h.spawn(func(ctx context.Context) Event {
				rd.good = h.verify(ctx, lj, c.Arena, c.Place, held)
				close(rd.done)
				return readingDone{id}
			})
		}
	}
}

// readingDone is the end of reading a place ahead.
type readingDone struct{ job replica.JobID }

// unread is a place of a rank's newest whole generation that was not read since the fence.
func (lj *localJob) unread(lr *localRank) (holding.Copy, bool) {
	gens := lr.arena.Holds()
	if len(gens) == 0 || gens[len(gens)-1].Step < lj.job.Committed.Step {
		return holding.Copy{}, false
	}
	newest := gens[len(gens)-1]
	for _, c := range lr.arena.AppendCopies(nil, room.Group(lj.job, lr.rank)) {
		rd := lj.ahead[arenaPlace{c.Arena, c.Place}]
		if (c.Place.Kind == shm.Frozen || c.Info.Generation == newest) && (rd == nil || rd.word != lr.arena.Word(c.Place)) {
			return c, true
		}
	}
	return holding.Copy{}, false
}

// readingOf tells whether a place of an arena is being read ahead.
func (lj *localJob) readingOf(a *holding.Arena) bool {
	for at, rd := range lj.ahead {
		if at.arena == a && !rd.over() {
			return true
		}
	}
	return false
}

func (rd *reading) over() bool {
	select {
	case <-rd.done:
		return true
	default:
		return false
	}
}

// readingWanted asks for the reading of a place since the newest fence; nil: there was none of what lies there now.
type readingWanted struct {
	lj *localJob
	at arenaPlace

	reading *reading
}

func (q *readingWanted) serve(*Host) {
	if rd := q.lj.ahead[q.at]; rd != nil && rd.word == q.at.arena.Word(q.at.place) {
		q.reading = rd
	}
}

// wasRead waits for a reading of the place that has begun since the fence, and tells whether there was one and it found no fault. Beside
// the host.
func (h *Host) wasRead(ctx context.Context, lj *localJob, arena *holding.Arena, p shm.Place) bool {
	q := readingWanted{lj: lj, at: arenaPlace{arena, p}}
	if !h.ask(ctx, &q) || q.reading == nil {
		return false
	}
	select {
	case <-q.reading.done:
		return q.reading.good
	case <-ctx.Done():
		return false
	}
}
