package chaos

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

const (
	servedEvery = 500 * time.Millisecond
	servedLeast = 0.25 // of the time that passes counts at least: every bound ends
)

// served is a clock that the bounds go by. It counts time as far as the processor is there for whoever wants it, in proportion to the calm
// job: where other programs have the cores, what takes longer than then is no standstill, and one that stands still waits for no core.
type served struct {
	waits func() map[int]time.Duration // by thread: how long it has waited for a core so far

	mu    sync.Mutex // guards all below
	last  time.Time
	was   map[int]time.Duration
	total time.Duration // counted
	calm  float64       // share of the time that was served in the calm job; 0: it is not over yet
	sum   time.Duration // served since the clock began, and the time in which
	of    time.Duration
}

func newServed(waits func() map[int]time.Duration) *served {
	return &served{waits: waits}
}

// run goes until ctx ends.
func (s *served) run(ctx context.Context) {
	tick := time.NewTicker(servedEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.look(time.Now())
		}
	}
}

// look takes in what threads have waited since the last look. The one that waited most counts.
func (s *served) look(now time.Time) {
	is := s.waits()
	s.mu.Lock()
	defer s.mu.Unlock()
	passed := now.Sub(s.last)
	if s.was == nil || passed <= 0 { // the first look
		s.last, s.was = now, is
		return
	}
	worst := time.Duration(0)
	for thread, waited := range is {
		if was, known := s.was[thread]; known {
			worst = max(worst, waited-was)
		}
	}
	share := 1 - min(1, float64(worst)/float64(passed))
	s.sum, s.of = s.sum+time.Duration(share*float64(passed)), s.of+passed
	s.total += time.Duration(counted(share, s.calm) * float64(passed))
	s.last, s.was = now, is
}

// counted is how much of a time counts of which a share was served, where calm was in the calm job.
func counted(share, calm float64) float64 {
	if calm == 0 {
		return 1
	}
	return min(1, max(servedLeast, share/calm))
}

// calmed takes the time until now for the measure.
func (s *served) calmed() (share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = max(servedLeast, float64(s.sum)/float64(max(s.of, 1)))
	return s.calm
}

// now is the time counted so far.
func (s *served) now() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// after returns a channel that is closed once so much more has been counted, unless ctx ends before that.
func (s *served) after(ctx context.Context, d time.Duration) <-chan struct{} {
	gone := make(chan struct{})
	from := s.now()
	go func() {
		tick := time.NewTicker(servedEvery / 2)
		defer tick.Stop()
		for s.now()-from < d {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		close(gone)
	}()
	return gone
}

// coreWaits is how long each thread of the processes below this one has waited for a core.
func coreWaits() map[int]time.Duration {
	waits := map[int]time.Duration{}
	for _, pid := range cluster.Descendants(os.Getpid()) {
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // what has ended waits for nothing
		for _, t := range threads {
			var ran, waited int64
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, t.Name()))
			if n, _ := fmt.Sscan(string(b), &ran, &waited); n == 2 {
				thread, _ := strconv.Atoi(t.Name()) // the kernel's number
				waits[thread] = time.Duration(waited)
			}
		}
	}
	return waits
}
