package host

import (
	"reflect"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

const (
	loadRate = 64 << 20 // bytes a second that a rank's parts come, and are loaded, at least
)

// stillness is for how long nothing of a rank's process has changed, as this node has seen it. It reads no clock.
type stillness struct {
	is    signs
	most  uint64 // of its progress
	since time.Duration
}

// signs are what changes as a process gets on.
type signs struct {
	incarnation              replica.Incarnation
	attached, stopped        bool
	live                     replica.Word
	initial, ordered, loaded replica.Epoch
	ending                   uint64
}

// look takes in what is reported of the rank now, and tells for how long it has been so.
func (s *stillness) look(now time.Duration, r replica.RankReport) time.Duration {
	is := signs{r.Incarnation, r.Attached, r.Stopped, r.Live, r.Initial, r.Ordered, r.Loaded, r.EndingMS}
	if is != s.is || r.Progress > s.most { // memory that comes and goes is no way forward
		s.is, s.since = is, now
	}
	s.most = max(s.most, r.Progress)
	return now - s.since
}

// stageClock is since when the node has known a job in its present phase.
type stageClock struct {
	epoch, closed replica.Epoch
	phase         replica.JobPhase
	at            time.Duration
}

func (c *stageClock) look(now time.Duration, job *replica.Job) time.Duration {
	if c.epoch != job.Epoch || c.closed != job.ClosedEpoch || c.phase != job.Phase {
		*c = stageClock{job.Epoch, job.ClosedEpoch, job.Phase, now}
	}
	return now - c.at
}

// reportClock is since when a node has had nothing else to say of a job.
type reportClock struct {
	is replica.NodeReport
	at time.Duration
}

func (c *reportClock) look(now time.Duration, r replica.NodeReport) time.Duration {
	if r.Seq = 0; !reflect.DeepEqual(r, c.is) {
		c.is, c.at = r, now
	}
	return now - c.at
}

// timed is a report with for how long things have been so, which is no change by itself.
func (lj *localJob) timed(r replica.NodeReport, now time.Duration) replica.NodeReport {
	r.StillMS, r.SinceMS = millis(lj.still.look(now, r)), millis(lj.since.look(now, lj.job))
	ranks := make([]replica.RankReport, len(r.Ranks))
	for i, rr := range r.Ranks {
		if lr := lj.ranks[rr.Rank]; lr != nil && lr.incarnation == rr.Incarnation {
			rr.StillMS = millis(lr.still.look(now, rr))
		}
		ranks[i] = rr
	}
	r.Ranks = ranks
	return r
}

// brings tells whether ranks are brought a state: that of a plan, what they grow to, or, as they begin, that of another run's generation.
func brings(job *replica.Job) bool {
	return job.Phase == replica.Planned || job.Growth != nil || job.Phase == replica.Opening && job.From != nil
}

// loads adds to a report how a rank gets on with what is planned.
func (h *Host) loads(job *replica.Job, lr *localRank, rr *replica.RankReport) {
	if !brings(job) || lr.arena == nil || lr.loaded == job.Epoch {
		return
	}
	g := lr.arena.Geometry()
	rr.LoadMS = millis(time.Duration(float64(g.ReplicatedBytes+g.PrivateBytes) / loadRate * float64(time.Second)))
	if lr.ordered == (orderKey{job.Epoch, wire.OrderLoad}) {
		rr.Ordered = job.Epoch
	} else {
		rr.Failing = h.restores.Failing(job.ID, job.Epoch, lr.rank)
	}
}

func millis(d time.Duration) uint64 { return uint64(max(d, 0).Milliseconds()) }
