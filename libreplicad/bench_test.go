package libreplicad_test

import (
	"testing"

	"github.com/replicad/replicad/replica"
)

// A step as a trainer in Go pays for it: three calls into C, the private and volatile regions copied, the worker woken. No
// capture is due, so that none is waited for. bench/words_and_capture has the figures of C alone.
func BenchmarkStep(b *testing.B) {
	d := newDaemon(b)
	r := started(b, d)
	d.arena.SetCadence(1 << 37)
	step := replica.Step(0)
	b.ReportAllocs()
	for b.Loop() {
		step++
		if err := r.StepEnter(step, patience); err != nil {
			b.Fatal(err)
		}
		if err := r.StepExit(step, 0); err != nil {
			b.Fatal(err)
		}
	}
}
