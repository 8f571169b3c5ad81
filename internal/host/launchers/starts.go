package launchers

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// startTries is how often in a row a process may end before it attaches, which no recovery mends: the job ends then. Two such ends
// with more than startWindow between them, and the time that a process may take to attach, are not in a row.
const (
	startTries  = 5
	startWindow = 10 * time.Minute
)

// starts is what a launcher's processes are doing, by rank, and how earlier ones ended: a value that is given the time.
type starts map[replica.Rank]*start

// start is the newest process that a launcher was asked to run for a rank.
type start struct {
	running  bool
	since    time.Time // since when it is expected to attach
	pid      uint64    // as its launcher reports; 0: not yet
	halted   bool      // and has not attached, and a signal has stopped it
	attached bool
	mute     bool          // this daemon asked for it, and no process for the rank has connected since
	notifyAt time.Duration // into the wait, its launcher is notified next that it is waited for; 0: it was not yet
	// It ended as a program without a session does, while other processes run that may show that this one makes sessions.
	held bool

	// Of the processes for the rank that ended before they claimed anything.
	tries   int       // in a row
	wants   int       // that ended so for a want, in a row
	retryAt time.Time // not before then is the next one started
	refused string    // why the last one got no arena
	turned  bool      // the daemon answered it so
}

// of is what is known of a rank's process, which may be nothing.
func (s starts) of(r replica.Rank) start {
	if p := s[r]; p != nil {
		return *p
	}
	return start{}
}

func (s starts) entry(r replica.Rank) *start {
	if s[r] == nil {
		s[r] = &start{}
	}
	return s[r]
}

// ranks are those that a process runs for, in order.
func (s starts) ranks() []replica.Rank {
	return slices.Sorted(func(yield func(replica.Rank) bool) {
		for r, p := range maps.All(s) {
			if p.running && !yield(r) {
				return
			}
		}
	})
}

// running counts them.
func (s starts) running() (n int) {
	for _, p := range s {
		if p.running {
			n++
		}
	}
	return n
}

// unheard counts the processes that the launcher was asked for and has not reported.
func (s starts) unheard() (n int) {
	for _, p := range s {
		if p.running && p.pid == 0 {
			n++
		}
	}
	return n
}

// may reports whether a process may be started for a rank now.
func (s starts) may(r replica.Rank, now time.Time) bool {
	p := s.of(r)
	return !p.running && now.After(p.retryAt) && p.tries < startTries
}

// asked notes that the launcher was asked to run a process for a rank.
func (s starts) asked(r replica.Rank, now time.Time) {
	p := s.entry(r)
	p.running, p.since, p.pid, p.halted, p.attached, p.notifyAt, p.mute = true, now, 0, false, false, 0, true
	p.refused, p.turned, p.held = "", false, false
}

// runs notes that the launcher runs one.
func (s starts) runs(r replica.Rank, pid uint64, now time.Time) {
	p := s.entry(r)
	p.mute = p.mute && p.running // one that this daemon has not asked for may have connected before
	p.running, p.since, p.pid, p.halted = true, now, pid, false
}

// hello notes that a process has connected to the socket as the rank.
func (s starts) hello(r replica.Rank) {
	if p := s[r]; p != nil {
		p.mute = false
	}
}

// strange reports whether a process that ended with a status was none of a rank: it ended well, and never connected. A program without a
// session does that however often it is started.
func (s starts) strange(r replica.Rank, status int32) bool { return status == 0 && s.of(r).mute }

// silent reports whether the launcher has not reported within patience that it runs what it was asked to. heard is when it reported
// anything last: it starts one process after the other, so that many take it longer than one.
func (s starts) silent(r replica.Rank, heard, now time.Time, patience time.Duration) bool {
	p := s.of(r)
	return p.pid == 0 && now.Sub(p.since) > patience && now.Sub(heard) > patience
}

// attached notes that the process of a rank has its arena: whatever goes wrong with it from here on is recovery's business.
func (s starts) attached(r replica.Rank) {
	p := s.entry(r)
	p.attached, p.halted, p.mute, p.tries, p.wants, p.refused, p.turned = true, false, false, 0, 0, "", false
}

// refused notes why a process got no arena. turned: it was answered so.
func (s starts) refused(r replica.Rank, why string, turned bool) {
	p := s.entry(r)
	p.refused, p.turned = why, turned
}

// over notes that no process runs for a rank any more.
func (s starts) over(r replica.Rank) {
	if p := s[r]; p != nil {
		p.running = false
	}
}

// early counts a process that ended before it attached, and returns how many did in a row. start is how long one may take to attach.
func (s starts) early(r replica.Rank, now time.Time, start time.Duration) int {
	p := s.entry(r)
	if now.Sub(p.retryAt) > startWindow+start {
		p.tries = 0
	}
	p.tries++
	p.retryAt = now.Add(time.Second)
	return p.tries
}

// wantAgain is how long the next process waits at most after one that met a want.
const wantAgain = 30 * time.Second

// again has the next process for a rank wait a second: the one before met a want, which counts for nothing. After the fifth in a row each
// waits twice as long: a program that always wants too much is not started all the time.
func (s starts) again(r replica.Rank, now time.Time) {
	p := s.entry(r)
	p.wants++
	p.retryAt = now.Add(min(time.Second<<min(max(p.wants-startTries, 0), 10), wantAgain))
}

// stuck reports whether a process should have attached by now. Its time begins anew: its launcher reports its end.
func (s starts) stuck(r replica.Rank, now time.Time, limit time.Duration) bool {
	p := s[r]
	if p == nil || !p.running || now.Sub(p.since) <= limit {
		return false
	}
	p.since = now
	return true
}

// excused begins the time of a process anew: what it waits for is not its own doing.
func (s starts) excused(r replica.Rank, now time.Time) {
	if p := s[r]; p != nil && p.running {
		p.since = now
	}
}

// notify reports whether its launcher is to be notified that the job has waited for a process for so long: after first, and each time
// that has doubled.
func (s starts) notify(r replica.Rank, waited, first time.Duration) bool {
	p := s.entry(r)
	next := max(first, p.notifyAt, 1)
	if waited < next {
		return false
	}
	for ; next <= waited && next < math.MaxInt64/2; next *= 2 {
	}
	p.notifyAt = next
	return true
}

// quiet forgets that its launcher was notified.
func (s starts) quiet() {
	for _, p := range s {
		p.notifyAt = 0
	}
}
