package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

func at(ms int) time.Time { return time.UnixMilli(int64(ms)) }

// A step counts as one during a write if it lies in it whole, and as one outside if it touches none.
func TestStepsAreSortedByWrites(t *testing.T) {
	d := &durableBench{}
	var steps []time.Time
	for _, ms := range []int{0, 900, 1800, 2700, 3600, 3700, 3810, 3930, 4060, 4160, 4260} { // the first five map the state
		steps = append(steps, at(ms))
	}
	d.stepsOf(steps, []span{{at(3705), at(4061)}})
	// Within: 3810-3930 and 3930-4060. Across an end: 3700-3810, 4060-4160. Outside: 3600-3700, 4160-4260.
	if !slices.Equal(d.during, []float64{130}) || !slices.Equal(d.outside, []float64{100}) {
		t.Errorf("during %v, outside %v", d.during, d.outside)
	}
}

// A round without a step during a write, or outside, has no ratio.
func TestStepsOfNoWriteCountForNothing(t *testing.T) {
	d := &durableBench{}
	d.stepsOf([]time.Time{at(0), at(1), at(2), at(3), at(4), at(5), at(6)}, nil)
	if len(d.during)+len(d.outside) > 0 {
		t.Errorf("during %v, outside %v", d.during, d.outside)
	}
}

// A write goes from the commit of its step to the word that it is durable.
func TestWritesAreSpans(t *testing.T) {
	b := &bed{journal: cluster.NewJournal()}
	for ms, event := range map[int]string{100: "committed", 400: "durable"} {
		for i := range 2 {
			when := at(ms + 1000*i).UTC().Format(time.RFC3339Nano)
			b.journal.AddLog("n1", []byte(`{"event":"`+event+`","step":`+string(rune('1'+i))+`,"time":"`+when+`"}`))
		}
	}
	spans, err := b.writes(t.Context())
	if err != nil || len(spans) != 2 || spans[0].took() != 300*time.Millisecond || spans[1].took() != 300*time.Millisecond {
		t.Errorf("%v, %v", spans, err)
	}
}

// What has no room is left out, with the remedy.
func TestDurableIsLeftOutWithoutRoom(t *testing.T) {
	var out leftOut
	if err := (&durableBench{mib: 1 << 40}).fits(t.TempDir()); !errors.As(err, &out) || !strings.Contains(out.why, "--part-mib") {
		t.Errorf("%v", err)
	}
	if err := (&durableBench{mib: 1}).fits(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestDropTakesEachFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := drop(dir); err != nil {
		t.Error(err)
	}
	if err := drop(filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there is dropped")
	}
}
