package rank

import (
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// LoadRate is how many bytes a second of a rank's parts come, and are loaded, at least.
const LoadRate = 64 << 20

// Report is what the leader is to know of the rank. Growth, and what fails of a restore, are the job's to add.
func (lr *Rank) Report(job *replica.Job) replica.RankReport {
	a := lr.Arena
	rr := replica.RankReport{Rank: lr.Rank, Incarnation: lr.Incarnation, Alive: lr.Alive(), Attached: lr.Peer != nil, PID: uint64(lr.PID),
		Live: a.Step(), Good: a.Good(), Settled: lr.Settled(), Stopped: lr.Stopped() && lr.Alive(), Initial: lr.Initial, Loaded: lr.Loaded,
		Left: lr.Left(), Hung: lr.Hangs(a.Step()), Halted: lr.Halted, Progress: lr.Progress, EndingMS: lr.Ending}
	rr.Stopped = rr.Stopped && !lr.Outgrown(job) // its process is about to end
	if lr.Loads(job) {
		g := a.Geometry()
		takes := time.Duration(float64(g.ReplicatedBytes+g.PrivateBytes) / LoadRate * float64(time.Second))
		rr.LoadMS = uint64(takes.Milliseconds())
		if lr.Ordered == (OrderKey{job.Epoch, wire.OrderLoad}) {
			rr.Ordered = job.Epoch
		}
	}
	rr.Whole = rr.Live.Phase() == replica.Idle && rr.Good.Generation() == rr.Live.Generation() && rr.Stopped
	return rr
}

// Loads tells whether the rank is to load a state that is brought, and has not.
func (lr *Rank) Loads(job *replica.Job) bool { return Brings(job) && lr.Loaded != job.Epoch }

// Brings tells whether ranks are brought a state: that of a plan, what they grow to, or, as they begin, that of another run's generation.
func Brings(job *replica.Job) bool {
	return job.Phase == replica.Planned || job.Growth != nil || job.Phase == replica.Opening && job.From != nil
}

// Stillness is for how long nothing of a rank's process has changed, as its node has seen it.
type Stillness struct {
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

// Look takes in what is reported of the rank now, and tells for how long it has been so. now counts from any fixed moment.
func (s *Stillness) Look(now time.Duration, r replica.RankReport) time.Duration {
	is := signs{r.Incarnation, r.Attached, r.Stopped, r.Live, r.Initial, r.Ordered, r.Loaded, r.EndingMS}
	if is != s.is || r.Progress > s.most { // memory that comes and goes is no way forward
		s.is, s.since = is, now
	}
	s.most = max(s.most, r.Progress)
	return now - s.since
}
