package catalog

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// held reads claims as "a2! a3 b4! ?5": fleet, epoch, whether it took the run; ? cannot be read.
func held(text string) (list []find.Holding) {
	for f := range strings.FieldsSeq(text) {
		var h find.Holding
		h.Epoch = replica.Epoch(f[1] - '0')
		if f[0] == '?' {
			h.Err = format.ErrCorrupt
		} else {
			h.Said = &format.Claim{Epoch: h.Epoch, Cluster: durabletest.Cluster, Fleet: f[:1], Takes: strings.HasSuffix(f, "!")}
		}
		list = append(list, h)
	}
	return list
}

// Who took a run last owns it, whatever others claim.
func TestMay(t *testing.T) {
	for _, row := range []struct {
		claims, fleet string
		want          string
	}{
		{"", "a1", "takes"},
		{"a1!", "a1", "commits"},
		{"a1!", "a2", "claims"},
		{"a1! a2", "a2", "commits"},
		{"a1! a2", "a1", "commits"}, // a generation that was written before its epoch closed
		{"a1!", "b1", "fenced"},
		{"a1! a3", "b2", "fenced"},
		{"a1!", "b2", "takes"}, // it could not when it resumed
		{"a1! b2!", "b2", "commits"},
		{"a1! b2!", "a1", "fenced"},
		{"a1! b2!", "a2", "fenced"},
		{"a1! b2!", "a3", "fenced"},
		{"a1! b2! a3", "b2", "commits"}, // it was put while b took the run
		{"a1! b2! a3", "b3", "commits"}, // a can commit nothing in it
		{"a1! b2! a3", "a3", "fenced"},
		{"a1! b2! a3", "b4", "claims"},
		{"a1! b2! a3!", "b2", "fenced"}, // a resumed it
		{"a1! b2! a3!", "a3", "commits"},
		{"a1! ?2", "a1", "unknown"},
		{"a1! ?2", "b2", "unknown"}, // it may be b's own
		{"a1! ?2", "b3", "takes"},
		{"a1! ?2", "a3", "unknown"},
		{"a1! ?2 b3!", "a1", "fenced"},
		{"a1! b2! ?3", "a1", "fenced"},
		{"a1! b2! ?3", "a3", "unknown"}, // a may have resumed it
		{"a1! b2! ?3", "b2", "unknown"},
		{"a2", "a2", "commits"}, // the claim that took the run is gone
		{"a2", "a3", "claims"},
		{"a2", "b2", "fenced"},
		{"?1 a2", "a2", "commits"},
		{"?1 a2", "b2", "fenced"},
		{"?1", "b2", "takes"},
		{"?1", "b1", "unknown"},
		{"a1! ?2 b3!", "b3", "commits"},
		{"?1", "a1", "unknown"},
		{"a1! b2! c2!", "a1", "fenced"}, // the store has no conditions
		{"a1! b2! c2!", "b2", "fenced"},
		{"a1! b2! c2!", "c2", "fenced"},
		{"a1! b2! c2!", "b3", "fenced"},
		{"a1! b2! c2! d3!", "d3", "commits"},
		{"a1! b2! c2! b3!", "b3", "commits"},
		{"a1! b2! ?2", "b2", "unknown"},
		{"a1! b2! a2", "b2", "commits"}, // a sees b's when it lists
		{"a1! b2! a2", "a2", "fenced"},
	} {
		f := held(row.fleet)[0].Said
		takes, err := may(held(row.claims), Fleet{f.Cluster, f.Fleet, f.Epoch})
		got := "commits"
		switch {
		case errors.Is(err, ErrFenced):
			got = "fenced"
		case errors.Is(err, find.ErrNone) && takes:
			got = "takes"
		case errors.Is(err, find.ErrNone):
			got = "claims"
		case err != nil:
			got = "unknown"
		}
		if got != row.want {
			t.Errorf("%q, %s: %s (%v), want %s", row.claims, row.fleet, got, err, row.want)
		}
	}
}

// However two fleets that resume a run fall together, and one that has it claims a further epoch meanwhile, one owns the run afterwards, and who was
// told that he owns it and does not is fenced at his next commit.
func TestResumeBesideOthers(t *testing.T) {
	refused, taken := 0, 0
	for at := int64(0); ; at += racing.Stride {
		st := memory.New()
		c, d := over(st, 1), over(st.Client(), 1)
		mustWrite(t, c, gen(2), 1)
		r := runOf(t, c)
		var calls int64
		var late error
		st.Before = func(memory.Call) error {
			if calls++; calls == at+1 {
				st.Before = nil
				_, _, late = d.Resume(t.Context(), r, Fleet{fleet.Cluster, "c", 0}, 1)
				late = errors.Join(late, ignoreFenced(d.Claim(t.Context(), r, Fleet{fleet.Cluster, fleet.Name, 9})))
			}
			return nil
		}
		_, _, err := c.Resume(t.Context(), r, Fleet{fleet.Cluster, "b", 0}, 1)
		done := st.Before == nil
		st.Before = nil
		for _, err := range []error{err, late} {
			if err != nil && !errors.Is(err, ErrFenced) {
				t.Fatalf("at call %d: %v", at, err)
			}
			if err != nil {
				refused++
			} else {
				taken++
			}
		}
		var may []string
		for _, name := range []string{fleet.Name, "b", "c"} {
			for e := replica.Epoch(1); e < 12; e++ {
				if _, err := over(st, 1).owns(t.Context(), r, Fleet{fleet.Cluster, name, e}); err == nil {
					may = append(may, name)
					break
				}
			}
		}
		if len(may) != 1 || may[0] == fleet.Name {
			t.Fatalf("at call %d the run has the owners %q: %v, %v", at, may, err, late)
		}
		if !done {
			break
		}
	}
	if refused == 0 || taken == 0 {
		t.Errorf("%d were refused, %d took it", refused, taken)
	}
}

func ignoreFenced(err error) error {
	if errors.Is(err, ErrFenced) {
		return nil
	}
	return err
}

func runOf(t *testing.T, c *Catalog) find.Run {
	t.Helper()
	r, err := c.At(t.Context(), durabletest.JobName, durabletest.Job)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A resume that broke off anywhere is made again by the same fleet, and by another.
func TestResumeThatBreaksOff(t *testing.T) {
	for at := 0; ; at += racing.Stride {
		st := memory.New()
		c := over(st, 1)
		mustWrite(t, c, gen(2), 1)
		r, calls := runOf(t, c), 0
		st.Before = func(memory.Call) error {
			if calls++; calls > at {
				return context.Canceled
			}
			return nil
		}
		_, _, err := c.Resume(t.Context(), r, Fleet{fleet.Cluster, "b", 0}, 1)
		st.Before = nil
		e, unused, again := c.Resume(t.Context(), r, Fleet{fleet.Cluster, "b", 0}, 1)
		if again != nil || e != 2 || unused != nil {
			t.Fatalf("broken off at call %d, again: epoch %d, %+v, %v", at, e, unused, again)
		}
		e, unused, other := c.Resume(t.Context(), runOf(t, c), Fleet{fleet.Cluster, "c", 0}, 1)
		if other != nil || e != 3 || len(unused) != 1 || unused[0].Fleet != "b" {
			t.Fatalf("broken off at call %d, by another: epoch %d, %+v, %v", at, e, unused, other)
		}
		if err == nil {
			break
		}
	}
}

// Claims are read once, and those of another directory that lies in their place are not taken for them.
func TestClaimsAreRemembered(t *testing.T) {
	st := memory.New()
	c := over(st, 1)
	mustWrite(t, c, gen(2), 1)
	r := runOf(t, c)
	gets := 0
	st.Before = func(call memory.Call) error {
		if call.Verb == "Get" {
			gets++
		}
		return nil
	}
	for range 2 {
		if _, err := c.owns(t.Context(), r, fleet); err != nil {
			t.Fatal(err)
		}
	}
	if gets > 0 {
		t.Errorf("%d reads of one claim that was read before", gets)
	}
	key := r.Key(format.Name{Kind: format.ClaimKind, Epoch: 1})
	b, err := (&format.Claim{Run: r.ID, Epoch: 1, Cluster: fleet.Cluster, Fleet: "somebody-else", Takes: true}).Seal()
	if err == nil {
		err = st.Delete(t.Context(), key)
	}
	if err == nil {
		_, err = st.PutNew(t.Context(), key, b)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.owns(t.Context(), r, fleet); !errors.Is(err, ErrFenced) {
		t.Errorf("in another directory: %v", err)
	}
}
