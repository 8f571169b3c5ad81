package recovery

import (
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// perReading is how long after a ledger the next one comes, for each reading in it: a large one that changes all the time costs little.
const perReading = 10 * time.Millisecond

// Handing is what a leader hands out of a job's clocks: again when one starts or ends, when a measure changes, and to nodes that have linked since.
type Handing struct {
	sent []replica.Reading
	at   time.Duration
	Due  bool // somebody has linked since
}

// Look is what is to be handed out now, by a leader that began at a time; ok is false where nothing is.
func (h *Handing) Look(now, began time.Duration, c *Clocks) (readings []replica.Reading, ok bool) {
	if now < began+listens || h.at != 0 && now < h.at+time.Duration(len(h.sent))*perReading {
		return nil, false // a node that links late may keep more than this leader knows
	}
	readings = c.Readings(now)
	if !h.Due && slices.EqualFunc(readings, h.sent, func(a, b replica.Reading) bool { return a.Clock == b.Clock && h.same(now, a, b) }) || len(readings)+len(h.sent) == 0 {
		return nil, false
	}
	h.sent, h.at, h.Due = readings, now, false
	return readings, true
}

// same tells whether a reading is no news: its clock has gone on since the one that was handed out, and nothing else.
func (h *Handing) same(now time.Duration, is, was replica.Reading) bool {
	if measure(is.Clock.Kind) {
		return is.N == was.N
	}
	gone := int64(is.N) - int64(was.N) - (now - h.at).Milliseconds()
	return gone > -500 && gone < 500
}

// Keep is what a node keeps of a job's clocks from one leader to the next, and what it knows of them itself.
type Keep struct {
	ledger replica.Ledger
	at     time.Duration // when it came
	commit replica.Clock // of what is committed, as the node has heard; zero: the job is not open
	since  time.Duration
}

// Take takes in what the leader hands out that the node is linked to: instead of what it keeps of any other, which may be one of another history.
func (k *Keep) Take(now time.Duration, l replica.Ledger) {
	if l.Era != k.ledger.Era || l.Term != k.ledger.Term || l.Seq > k.ledger.Seq {
		k.ledger, k.at = l, now
	}
}

// Follow follows the job.
func (k *Keep) Follow(now time.Duration, job *replica.Job) {
	var is replica.Clock
	if job.Phase == replica.Open {
		is = commitClock(job)
	}
	if is != k.commit {
		k.commit, k.since = is, now
	}
}

// Word is the node's first word to a new leader; ok is false where it has nothing to say.
func (k *Keep) Word(now time.Duration, job replica.JobID) (l replica.Ledger, ok bool) {
	l = k.ledger
	l.Job, l.Readings = job, slices.Clone(l.Readings)
	for i, r := range l.Readings {
		if !measure(r.Clock.Kind) {
			l.Readings[i].N += uint64(max(now-k.at, 0).Milliseconds())
		}
	}
	if k.commit != (replica.Clock{}) {
		l.Own = []replica.Reading{{Clock: k.commit, N: uint64(max(now-k.since, 0).Milliseconds())}}
	}
	return l, len(l.Readings)+len(l.Own) > 0
}

// commitClock is the clock of what is committed of an open job.
func commitClock(job *replica.Job) replica.Clock {
	return replica.Clock{Kind: clockCommit, Epoch: job.Epoch, Of: uint64(job.Position.Step)}
}
