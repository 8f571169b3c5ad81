package catalog

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// However a commit and the discard of its attempt fall together, no generation is found that lacks an object, and one that was committed is whole.
func TestDiscardBesideACommit(t *testing.T) {
	committed, refused := 0, 0
	for at := 0; ; at += racing.Stride {
		st := memory.New()
		c, d := over(st, 1), over(st.Client(), 1)
		var calls atomic.Int64
		ended := make(chan error, 1)
		st.Before = func(memory.Call) error {
			if calls.Add(1) == int64(at)+1 {
				ended <- discards(t.Context(), d)
			}
			return nil
		}
		_, err := wrote(t.Context(), c, gen(100), 1, 17)
		st.Before = nil
		done := len(ended) == 1
		if done {
			if left := <-ended; left != nil {
				t.Fatalf("at call %d the discard ends with %v", at, left)
			}
		}
		found, skipped, ferr := d.Find(t.Context(), durabletest.JobName, durabletest.Job)
		if ferr != nil {
			t.Fatal(ferr)
		}
		for _, s := range skipped {
			if s.State == find.Damaged {
				t.Fatalf("discarded at call %d: %s", at, s.Reason)
			}
		}
		if (err == nil) != (len(found) == 1) {
			t.Fatalf("discarded at call %d: the commit ends with %v, and %d are found", at, err, len(found))
		}
		if err != nil {
			refused++
		} else {
			checkWhole(t, d, found[0], 1)
			committed++
		}
		if !done {
			break
		}
	}
	if committed == 0 || refused == 0 {
		t.Errorf("%d were committed, %d refused", committed, refused)
	}
}

func discards(ctx context.Context, c *Catalog) error {
	r, err := c.At(ctx, durabletest.JobName, durabletest.Job)
	if errors.Is(err, find.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.Discard(ctx, write.Attempt{Run: r, Generation: gen(100), Write: 17}, []string{"group-0", write.NodeObject("b")})
}

// A discard that broke off anywhere is finished by the next, and Sweep removes the entry that it leaves.
func TestDiscardThatBreaksOff(t *testing.T) {
	for at := 0; ; at += racing.Stride {
		st := memory.New()
		c := over(st, 1)
		if _, err := wrote(t.Context(), c, gen(90), 1, 16); err != nil {
			t.Fatal(err)
		}
		r, err := c.At(t.Context(), durabletest.JobName, durabletest.Job)
		if err != nil {
			t.Fatal(err)
		}
		made := durabletest.Make(gen(100), 1)
		a := write.Attempt{Run: r, Generation: gen(100), Write: 17}
		for name, parts := range map[string][]write.Part{"group-0": {part(made.Groups[0])}, write.NodeObject("b"): {part(made.Private[0]), part(made.Private[1])}} {
			if _, err := c.WriteObject(t.Context(), a, name, parts...); err != nil {
				t.Fatal(err)
			}
		}
		var calls atomic.Int64
		broken := errors.New("broken off")
		st.Before = func(memory.Call) error {
			if calls.Add(1) > int64(at) {
				return broken
			}
			return nil
		}
		err = discards(t.Context(), c)
		st.Before = nil
		if again := discards(t.Context(), c); again != nil {
			t.Fatal(again)
		}
		if keys := left(t, st, ".w17.safetensors"); len(keys) != 0 {
			t.Fatalf("broken off at call %d it leaves %q", at, keys)
		}
		if _, err := c.Sweep(t.Context(), r, 0); err != nil {
			t.Fatal(err)
		}
		if keys := left(t, st, "/index.w17.json"); len(keys) != 0 {
			t.Fatalf("after a sweep there are %q", keys)
		}
		if err == nil {
			break
		}
	}
}

func left(t *testing.T, st *memory.Store, suffix string) (keys []string) {
	t.Helper()
	for _, k := range st.Keys() {
		if strings.HasSuffix(k, suffix) {
			keys = append(keys, k)
		}
	}
	return keys
}

// The highest number of a write counts on, whatever became of it.
func TestLastWrite(t *testing.T) {
	c := over(memory.New(), 4)
	if _, err := wrote(t.Context(), c, gen(90), 1, 16); err != nil {
		t.Fatal(err)
	}
	r, err := c.At(t.Context(), durabletest.JobName, replica.JobID{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteGroup(t.Context(), write.Attempt{Run: r, Generation: gen(80), Write: 40}, part(durabletest.Make(gen(80), 1).Groups[0])); err != nil {
		t.Fatal(err)
	}
	if n, err := c.LastWrite(t.Context(), r); err != nil || n != 40 {
		t.Errorf("the last write is %d, %v", n, err)
	}
}
