package catalog

import (
	"context"
	"errors"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

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
				_, _, late = d.Resume(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "c", Epoch: 0}, 1)
				late = errors.Join(late, ignoreFenced(d.Claim(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: fleet.Name, Epoch: 9})))
			}
			return nil
		}
		_, _, err := c.Resume(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "b", Epoch: 0}, 1)
		done := st.Before == nil
		st.Before = nil
		for _, err := range []error{err, late} {
			if err != nil && !errors.Is(err, write.ErrFenced) {
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
				if _, err := over(st, 1).Owns(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: name, Epoch: e}); err == nil {
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
	if errors.Is(err, write.ErrFenced) {
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
		_, _, err := c.Resume(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "b", Epoch: 0}, 1)
		st.Before = nil
		e, unused, again := c.Resume(t.Context(), r, write.Fleet{Cluster: fleet.Cluster, Name: "b", Epoch: 0}, 1)
		if again != nil || e != 2 || unused != nil {
			t.Fatalf("broken off at call %d, again: epoch %d, %+v, %v", at, e, unused, again)
		}
		e, unused, other := c.Resume(t.Context(), runOf(t, c), write.Fleet{Cluster: fleet.Cluster, Name: "c", Epoch: 0}, 1)
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
		if _, err := c.Owns(t.Context(), r, fleet); err != nil {
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
	if _, err := c.Owns(t.Context(), r, fleet); !errors.Is(err, write.ErrFenced) {
		t.Errorf("in another directory: %v", err)
	}
}
