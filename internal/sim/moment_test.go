package sim

import (
	"github.com/replicad/replicad/replica"
)

// moment is a stretch of a job's life at which faults are aimed: seconds lie between faults, and milliseconds decide what they cost.
type moment uint8

const (
	anytime   moment = iota // drawn by the clock, not by what happens
	opening                 // ranks attach and seal their first state
	capturing               // a rank copies its group's part
	pinning                 // a rank has sealed the candidate, which is not committed
	pushing                 // a mirror takes a part in
	splitting               // one rank has sealed a candidate, and another one has passed it
	closed                  // an epoch is closed, and nothing is planned
	living                  // ranks are asked for their live state
	planned                 // there is a plan, and a rank has not loaded
	fetching                // a node reads from another what the plan names
	loaded                  // a rank has loaded, and the job is not resumed
	resumed                 // the first moments of an epoch
	adopting                // a daemon has started and looks for what it had
	leaving                 // a rank has made its last step
	moments
)

func (m moment) String() string {
	return [...]string{"any time", "opening", "capture", "pin to commit", "push to seal", "candidate passed", "closed", "live capture", "plan to load", "fetch", "load to resume", "resumed", "adoption", "leaving"}[m]
}

// often tells whether a moment comes at every step.
func (m moment) often() bool { return m == capturing || m == pinning || m == pushing }

// recovers tells whether a moment comes only where something has failed.
func (m moment) recovers() bool { return m >= closed && m <= adopting }

// follows tells whether a moment comes only where a fault brought it about.
func (m moment) follows() bool { return m.recovers() || m == splitting }

// aimed are the moments, as often as they are drawn.
var aimed = []moment{anytime, anytime, opening, capturing, pinning, pinning, pushing, pushing, splitting, splitting, splitting, closed, closed, living, living, living, planned, planned, planned, fetching, fetching, loaded, loaded, resumed, adopting, adopting, leaving}

// sight is a moment that somebody sees begin, with whom it concerns.
type sight struct {
	moment moment
	at     *machine // nil: all
	from   *machine // the other side of a transfer
	rank   *process
	on     func() bool // whether it still lasts; nil: nobody knows
}

// see tells the script of a moment, if it waits for such. It never waits itself.
func (w *world) see(s sight) {
	if moment(w.wanted.Load()) != s.moment {
		return
	}
	select {
	case w.sights <- s:
	default:
	}
}

// phase tells whether the job is in a phase of an epoch.
func (w *world) phase(e replica.Epoch, p replica.JobPhase) func() bool {
	return func() bool {
		j := w.now()
		return j != nil && j.Epoch == e && j.Phase == p
	}
}

// now is the job as the log has it; nil: there is none.
func (w *world) now() *replica.Job {
	w.mu.Lock()
	id := w.job
	w.mu.Unlock()
	return w.raft.now().Jobs[id]
}

// sees has the script told of what an entry begins. w.mu is held.
func (w *world) sees(before, j *replica.Job) {
	if before != nil && before.Phase == j.Phase && before.Epoch == j.Epoch {
		return
	}
	is := map[replica.JobPhase]moment{replica.Opening: opening, replica.Closed: closed, replica.Planned: planned, replica.Open: resumed}[j.Phase]
	if is != anytime {
		w.see(sight{moment: is, on: w.phase(j.Epoch, j.Phase)})
	}
}
