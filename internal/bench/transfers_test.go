package bench

import (
	"bytes"
	"testing"
)

// What goes into a figure is that the part arrived: over every lane and mix, and over every limit.
func TestContestsMoveThePart(t *testing.T) {
	s, err := newStand(t.TempDir(), 9*mib+5)
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	for _, c := range s.contests() {
		for name, move := range map[string]func() error{
			"limit": func() error { return c.limit.move(t.Context(), c.conns) },
			"ours":  func() error { return s.part.fetch(t.Context(), c.sources()) },
		} {
			clear(s.part.to)
			if err := move(); err != nil || !bytes.Equal(s.part.from, s.part.to) {
				t.Errorf("%s, %s: %v", c.name, name, err)
			}
		}
	}
}

// BenchmarkTransfers is `replicad bench --only transfer` under the tools of go test: go test ./internal/bench -run '^$' -bench 'Transfers/tls/2' -cpuprofile FILE
func BenchmarkTransfers(b *testing.B) {
	s, err := newStand(b.TempDir(), 256*mib)
	if err != nil {
		b.Fatal(err)
	}
	defer s.stop()
	for _, c := range s.contests() {
		b.Run(c.name[len("transfer/"):], func(b *testing.B) {
			b.SetBytes(int64(s.part.bytes()))
			for b.Loop() {
				if err := s.part.fetch(b.Context(), c.sources()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
