package durable

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// What auto has measured is the job's: a leader that comes knows what the newest write took, how long ago it ended and how many faults there were.
func TestAutoGoesOnUnderAnotherLeader(t *testing.T) {
	led := func() *stage {
		s := newStage()
		s.job = fixture.Changed(s.job, func(j *replica.Job) { j.Options.DurableEvery = replica.DurableAuto })
		return s
	}
	s := led()
	s.changes(func(*replica.Job) {})
	s.now = 10 * time.Second
	s.changes(func(j *replica.Job) { j.Writer = &replica.DurableWrite{Generation: j.Committed, Number: 1} })
	s.now = 14 * time.Second
	s.changes(func(j *replica.Job) { j.Durable, j.Writer = j.Committed, nil })
	s.changes(func(j *replica.Job) {
		j.ClosedEpoch, j.Phase, j.Faults = j.Epoch, replica.Closed, []replica.Fault{{Epoch: j.Epoch, Kind: replica.Hang}}
	})
	s.now = 60 * time.Second
	want := s.room.Pace(s.now)
	for _, says := range []string{"the newest took 4s", "1 faults in 1m0s"} {
		if !strings.Contains(want, says) {
			t.Fatalf("before the leader changes: %q, want %q", want, says)
		}
	}
	var keep recovery.Keep
	keep.Take(s.now, replica.Ledger{Term: 1, Seq: 1, Readings: s.clocks.Readings(s.now)})
	due := s.room.dueAt(s.now)

	next := led()
	next.job = s.job
	next.now = 3 * time.Second // by its own clock, which began much later
	next.changes(func(*replica.Job) {})
	word, _ := keep.Word(s.now, next.job.ID)
	next.clocks.Learn(next.now, "a", word, 0)
	if got := next.room.Pace(next.now); got != want {
		t.Errorf("the next leader says %q, the one before %q", got, want)
	}
	if got, before := next.room.dueAt(next.now)-next.now, due-s.now; got != before {
		t.Errorf("by the next leader a write is due in %v, by the one before in %v", got, before)
	}
}
