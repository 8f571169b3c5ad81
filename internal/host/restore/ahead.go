package restore

import (
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Reading is one place that is read ahead, whole, beside the owner.
type Reading struct {
	Job  replica.JobID
	Copy holding.Copy
	word replica.SlotWord // of the place when it began
	done chan struct{}
	good bool // to be read once done is closed
}

// End says what the reading has found. It is called once, from anywhere; the owner learns of it by act.Ended.
func (rd *Reading) End(good bool) {
	rd.good = good
	close(rd.done)
}

// Done is closed at the reading's end; Good then tells whether it found no fault.
func (rd *Reading) Done() <-chan struct{} { return rd.done }
func (rd *Reading) Good() bool            { return rd.good }

func (rd *Reading) over() bool {
	select {
	case <-rd.done:
		return true
	default:
		return false
	}
}

// arenaPlace is a place of one of a job's arenas.
type arenaPlace struct {
	arena *holding.Arena
	place shm.Place
}

// readAhead begins to read what a plan is most likely to name: of each rank's arena the newest generation that is whole there, where that is
// not older than the committed one. One place of an arena at a time.
func (r *Room) readAhead(v room.JobView) {
	j := r.job(v.Job.ID)
	if v.Job.Phase == replica.Open || v.Fenced > j.fenced { // what was read before the newest fence does not count
		clear(j.readings)
	}
	j.fenced = v.Fenced
	if v.Job.Phase != replica.Closed || v.Fenced < v.Job.ClosedEpoch {
		return
	}
	for _, is := range v.Ranks {
		if j.reads(is.Arena) {
			continue
		}
		if c, ok := j.unread(v.Job, is); ok {
			c.Held.Rank = is.Rank
			rd := &Reading{Job: v.Job.ID, Copy: c, word: is.Arena.Word(c.Place), done: make(chan struct{})}
			j.readings[arenaPlace{c.Arena, c.Place}] = rd
			r.effects = append(r.effects, rd)
		}
	}
}

// unread is a place of a rank's newest whole generation that was not read since the fence.
func (j *job) unread(of *replica.Job, is room.Rank) (holding.Copy, bool) {
	gens := is.Arena.Holds()
	if len(gens) == 0 || gens[len(gens)-1].Step < of.Committed.Step {
		return holding.Copy{}, false
	}
	newest := gens[len(gens)-1]
	for _, c := range is.Arena.AppendCopies(nil, room.Group(of, is.Rank)) {
		rd := j.readings[arenaPlace{c.Arena, c.Place}]
		if (c.Place.Kind == shm.Frozen || c.Info.Generation == newest) && (rd == nil || rd.word != is.Arena.Word(c.Place)) {
			return c, true
		}
	}
	return holding.Copy{}, false
}

// reads tells whether a place of an arena is being read ahead.
func (j *job) reads(a *holding.Arena) bool {
	for at, rd := range j.readings {
		if at.arena == a && !rd.over() {
			return true
		}
	}
	return false
}

// Reading is that of a place since the newest fence; nil: there was none of what lies there now.
func (r *Room) Reading(id replica.JobID, a *holding.Arena, p shm.Place) *Reading {
	if j := r.jobs[id]; j != nil {
		if rd := j.readings[arenaPlace{a, p}]; rd != nil && rd.word == a.Word(p) {
			return rd
		}
	}
	return nil
}
