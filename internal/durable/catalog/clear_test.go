package catalog

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/replica"
)

// What a run has left goes once no generation of it is there, and not before a grace.
func TestClear(t *testing.T) {
	st := memory.New()
	clock := now
	st.Now = func() time.Time { return clock }
	c := over(st, 4)
	mustWrite(t, c, gen(90), 1)
	r, err := c.At(t.Context(), durabletest.JobName, replica.JobID{})
	if err != nil {
		t.Fatal(err)
	}
	clears := func(want bool) {
		t.Helper()
		if gone, err := c.Clear(t.Context(), r, time.Hour); err != nil || gone != want {
			t.Fatalf("cleared: %v, %v", gone, err)
		}
	}
	clock = clock.Add(2 * time.Hour)
	clears(false)
	if err := c.Delete(t.Context(), r, gen(90), "a test"); err != nil {
		t.Fatal(err)
	}
	if len(left(t, st, ".a.safetensors")) != 1 {
		t.Fatal("there is no frozen part")
	}
	clears(false) // its summary has just changed
	clock = clock.Add(time.Hour)
	clears(true)
	for _, key := range st.Keys() {
		if strings.HasPrefix(key, r.Prefix()) {
			t.Errorf("%s is left", key)
		}
	}
}
