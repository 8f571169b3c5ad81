package launchers

import (
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// TestStartsInVain: after an end before it attached a rank's next process waits a second, the fifth in a row is the last, and what lies
// long ago does not count.
func TestStartsInVain(t *testing.T) {
	const attach = time.Minute // how long a process may take
	s, now := starts{}, time.Unix(1000, 0)
	for try := 1; try <= startTries; try++ {
		if !s.may(0, now) {
			t.Fatalf("try %d: no process may be started", try)
		}
		s.asked(0, now)
		if s.may(0, now.Add(time.Hour)) {
			t.Fatalf("try %d: two processes for one rank", try)
		}
		s.over(0)
		if got := s.early(0, now, attach); got != try {
			t.Fatalf("counted as try %d, want %d", got, try)
		}
		if s.may(0, now.Add(time.Second)) {
			t.Fatalf("try %d: the next one follows within a second", try)
		}
		now = now.Add(2 * time.Second)
	}
	if s.may(0, now.Add(time.Hour)) {
		t.Errorf("a process is started after %d in vain", startTries)
	}
	if got := s.early(0, now.Add(startWindow+attach+time.Second), attach); got != 1 {
		t.Errorf("an end long after the others counts as try %d, want the first", got)
	}
	s.early(1, now, attach)
	s.refused(1, "no memory", true)
	if p := s.of(1); p.tries != 1 || p.refused != "no memory" {
		t.Errorf("knows %+v", p)
	}
	s.attached(1)
	if p := s.of(1); p.tries != 0 || p.refused != "" || !p.attached {
		t.Errorf("of one that has attached it knows %+v", p)
	}
}

// TestStartsThatHang: a launcher that says nothing, and a process that does not attach.
func TestStartsThatHang(t *testing.T) {
	s, now := starts{}, time.Unix(1000, 0)
	s.asked(2, now)
	s.asked(0, now)
	if got := s.ranks(); !slices.Equal(got, []replica.Rank{0, 2}) {
		t.Fatalf("processes run for ranks %v", got)
	}
	if s.silent(0, time.Time{}, now.Add(time.Second), time.Second) || !s.silent(0, time.Time{}, now.Add(2*time.Second), time.Second) || s.silent(0, now.Add(time.Second), now.Add(2*time.Second), time.Second) {
		t.Error("a launcher has one second to say that it runs the process, or anything")
	}
	s.runs(0, 4711, now)
	if s.silent(0, time.Time{}, now.Add(time.Hour), time.Second) {
		t.Error("it has said so")
	}
	if s.stuck(0, now.Add(time.Minute), time.Minute) || !s.stuck(0, now.Add(61*time.Second), time.Minute) || s.stuck(0, now.Add(62*time.Second), time.Minute) {
		t.Error("a process has a minute to attach, and is killed once")
	}
	s.excused(2, now.Add(time.Hour))
	if s.stuck(2, now.Add(time.Hour), time.Minute) {
		t.Error("one that waits for the daemon is not stuck")
	}
	s.over(2)
	if s.stuck(2, now.Add(5*time.Hour), time.Minute) || s.stuck(9, now, time.Minute) {
		t.Error("where no process runs none is stuck")
	}
}

// TestStartsAreAwaitedAloud: after the first time, and each time that has doubled; a new process is a new wait.
func TestStartsAreAwaitedAloud(t *testing.T) {
	s, said := starts{}, []int{}
	for seconds := range 100 {
		if s.notify(0, time.Duration(seconds)*time.Second, 10*time.Second) {
			said = append(said, seconds)
		}
	}
	if !slices.Equal(said, []int{10, 20, 40, 80}) {
		t.Errorf("said after %v seconds", said)
	}
	if s.notify(0, 90*time.Second, 10*time.Second) || !s.notify(0, 90*24*time.Hour, 10*time.Second) { // a job may wait for months
		t.Error("after ninety days it is not told, or it was before")
	}
	if !s.notify(1, time.Minute, 10*time.Second) || s.notify(1, time.Minute, 10*time.Second) {
		t.Error("what is late is said once")
	}
	s.asked(0, time.Unix(1000, 0))
	if !s.notify(0, 10*time.Second, 10*time.Second) {
		t.Error("nothing is said of the next process")
	}
	s.quiet()
	if !s.notify(0, 10*time.Second, 10*time.Second) {
		t.Error("nothing is said of the next wait")
	}
}

// TestWantsAreTriedAgain: what was short a moment ago may be there now, and a program that always wants too much is not started all the time.
func TestWantsAreTriedAgain(t *testing.T) {
	s, now, waits := starts{}, time.Unix(1000, 0), []int{}
	next := func() {
		s.again(0, now)
		from := now
		for ; !s.may(0, now); now = now.Add(time.Second / 2) {
		}
		waits = append(waits, int(now.Sub(from)/time.Second))
	}
	for range 12 {
		next()
	}
	s.attached(0)
	next()
	if !slices.Equal(waits, []int{1, 1, 1, 1, 1, 2, 4, 8, 16, 30, 30, 30, 1}) {
		t.Errorf("started again after %v seconds", waits)
	}
}
