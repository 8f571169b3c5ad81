package leader

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// A leader whose clock is behind that of the one that made the job knows nothing of the job's age: it used to cut all that the job had waited for to a millisecond.
func TestAJobFromTheFutureHasNoAge(t *testing.T) {
	for began, want := range map[time.Time]bool{time.Now().Add(time.Hour): false, time.Now().Add(-time.Hour): true} {
		if got := age(&replica.Job{Began: uint64(began.UnixMilli())}); got > 0 != want || got < 0 {
			t.Errorf("began at %v: %v old", began, got)
		}
	}
	if got := age(&replica.Job{}); got != 0 {
		t.Errorf("of a job that does not say when it began: %v", got)
	}
}

// What a node keeps of a leader that this cluster cannot have had is of another history: as the newest it used to count, and all true words did not.
func TestALedgerFromBeyondCountsForNothing(t *testing.T) {
	for name, from := range map[string]struct {
		era    replica.Era
		term   uint64
		counts bool
	}{"the leader before": {1, 6, true}, "this leader": {1, 7, true}, "an earlier era, as before voter recover": {0, 99, false}, "a later term": {1, 8, false}, "a later era": {2, 1, false}} {
		c, led, n1, n2 := pinner(t)
		const costOfAWrite replica.ClockKind = 25
		k := replica.Clock{Kind: costOfAWrite}
		says := func(from *nodeLink, era replica.Era, term, n uint64) {
			c.handle(t.Context(), nodeMessage{from, replica.Ledger{Job: led.job.ID, Era: era, Term: term, Readings: []replica.Reading{{Clock: k, N: n}}}})
		}
		const truly, told = 2000, 600
		says(n1, 1, 5, truly)
		says(n2, from.era, from.term, told)
		says(n2, from.era, from.term, told)
		want := uint64(truly)
		if from.counts {
			want = told
		}
		if got := led.recovery.Clocks.Measure(k); got != want {
			t.Errorf("%s: %d was measured, want %d", name, got, want)
		}
		beyond := from.era > 1 || from.term > 7 && from.era == 1
		if got := strings.Count(c.log.String(), "node n2 keeps clocks of era"); got > 1 || beyond != (got == 1) {
			t.Errorf("%s: said %d times: %s", name, got, c.log)
		}
	}
}
