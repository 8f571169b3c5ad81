//go:build cgo

package trouble_test

import (
	"slices"
	"strings"
	"testing"
)

// TestWorldBeyondTheSeatsStopsNobody: a typo in --world asks for thousands of processes that nobody offers. The job waits and says so;
// another job trains on, and an operator ends it.
func TestWorldBeyondTheSeatsStopsNobody(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	first := c.nodes[0].run("job", 2, rankSpec{}, "--ranks", "0")
	c.nodes[1].run("job", 2, rankSpec{}, "--ranks", "1").await("step", fields{"step": 5})
	c.nodes[2].run("large", 4096, rankSpec{}, "--ranks", "0")
	waits := func(text string) bool { return strings.HasPrefix(text, "job large waits for 4095 processes") }
	s := c.nodes[1].statusWhen(func(s status) bool {
		return linked(s) && slices.ContainsFunc(s.job("large").Waiting, waits)
	})
	if s.Steps.Budget == 0 {
		t.Errorf("status says nothing of the leader's steps: %+v", s.Steps)
	}
	at := s.job("job").Position.Step
	first.await("step", fields{"step": float64(at + 20)})
	if code, out := c.nodes[0].verb("job", "end", "large", "--reason", "a typo"); code != 0 {
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "job large has ended")
	}
}
