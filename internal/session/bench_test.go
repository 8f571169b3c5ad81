package session

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// BenchmarkWake is the time from a rank's write of SEALED to the event in the daemon's hands, apart from what the worker spends
// before: the daemon sleeps until then, as it does while ranks compute. The mean says little of a sleep; p50 and p99 are reported.
func BenchmarkWake(b *testing.B) {
	s := serve(b, Config{Path: filepath.Join(b.TempDir(), "d.sock")})
	c, _ := greeted(b, s)
	sealed := wire.AppendRank(nil, wire.RankHeader{Type: wire.MSealed, Epoch: 3, Incarnation: 4}, wire.Sealed{Kind: 1, Index: 2, Word: replica.PackSlot(5, replica.SlotSealed), Generation: replica.Generation{Epoch: 3, Step: 4}}.Append(nil))
	var took []time.Duration
	for b.Loop() {
		time.Sleep(200 * time.Microsecond) // until all its threads sleep
		from := time.Now()
		if _, err := c.c.Write(sealed); err != nil {
			b.Fatal(err)
		}
		ev := <-s.Events()
		took = append(took, time.Since(from))
		if _, ok := ev.(Sealed); !ok {
			b.Fatalf("event %T %+v", ev, ev)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "us-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "us-p99")
	b.ReportMetric(0, "ns/op") // the pause is in it
}
