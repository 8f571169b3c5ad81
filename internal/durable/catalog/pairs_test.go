package catalog

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/racing"
)

// TestDamageInPairs bends or removes any two objects. Never a wrong bit, never an error that hides what is whole: a generation of which no
// object was touched is always found, and what verifies is what was written.
func TestDamageInPairs(t *testing.T) {
	clean := memory.New()
	c := over(clean, 4)
	mustWrite(t, c, gen(2), 1)
	mustWrite(t, c, gen(4), 1)
	keys := clean.Keys()
	bends := []func(b []byte) []byte{
		func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
		func([]byte) []byte { return nil },
	}
	touches := func(key string, f *find.Found) bool {
		p, name, ok := find.Split(key)
		n := format.ParseName(name)
		return ok && p == f.Run.Place && n.OfGeneration() && n.Generation == f.Generation
	}
	whole, _ := finds(t, c)
	twins := func(a, b string) bool { // of one frozen part
		_, x, _ := find.Split(a)
		_, y, _ := find.Split(b)
		p, q := format.ParseName(x), format.ParseName(y)
		return p.Kind == format.SharedKind && q.Kind == format.SharedKind && p.Root == q.Root
	}
	cases := 0
	for i, a := range keys {
		for j, b := range keys[i+1:] {
			cases++
			m := clean.Clone()
			m.Bend(a, bends[(i+j)%2])
			m.Bend(b, bends[j%2])
			d := over(m, 4)
			found, skipped, err := d.Find(t.Context(), durabletest.JobName, durabletest.Job)
			if err != nil {
				t.Fatalf("%s, %s: %v", a, b, err)
			}
			for _, f := range found {
				faults, err := d.Verify(t.Context(), f, nil)
				if err != nil {
					if !touches(a, &f) && !touches(b, &f) && !twins(a, b) {
						t.Errorf("%s, %s: %v does not verify: %v", a, b, f.Generation, err)
					}
					continue
				}
				if len(faults) == 0 {
					checkWhole(t, d, f, 1)
				}
			}
			for _, f := range whole {
				if touches(a, &f) || touches(b, &f) || twins(a, b) {
					continue
				}
				seen := false
				for _, g := range found {
					seen = seen || g.Generation == f.Generation
				}
				if !seen {
					t.Errorf("%s, %s: %v is not found: %v", a, b, f.Generation, skipped)
				}
			}
		}
	}
	t.Logf("%d pairs of %d objects", cases, len(keys))
}

// TestClaimRace: of fleets that claim one epoch at once, one wins, and the others learn which.
func TestClaimRace(t *testing.T) {
	m := memory.New()
	r, err := over(m, 1).Begin(t.Context(), format.Run{Job: durabletest.JobName, ID: durabletest.Job, Began: began.UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	for e := range 10 {
		var won atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				err := over(m, 1).Claim(t.Context(), r, write.Fleet{Cluster: durabletest.Cluster, Name: fmt.Sprint("fleet-", e, "-", i), Epoch: 2})
				switch {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, write.ErrFenced):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d fleets won", won.Load())
		}
		m.Bend(r.Key(format.Name{Kind: format.ClaimKind, Epoch: 2}), func([]byte) []byte { return nil })
	}
}

// TestSweepAtEveryCallOfAWrite: somebody sweeps at each call of a write, with what a dead attempt left lying about. The write comes
// through, whole.
func TestSweepAtEveryCallOfAWrite(t *testing.T) {
	for n := int64(0); ; n += racing.Stride {
		m := memory.New()
		c := over(m, 1)
		mustWrite(t, c, gen(2), 1)
		found, _ := finds(t, c)
		r := found[0].Run
		made := durabletest.Make(gen(4), 1)
		if _, err := c.WriteGroup(t.Context(), write.Attempt{Run: r, Generation: gen(4), Write: 16}, part(made.Groups[0])); err != nil {
			t.Fatal(err)
		}
		m.Age(2 * time.Hour)
		var calls atomic.Int64
		var inside atomic.Bool
		m.Before = func(memory.Call) error {
			if inside.Load() || calls.Add(1)-1 != n {
				return nil
			}
			inside.Store(true)
			defer inside.Store(false)
			_, err := over(m, 1).Sweep(t.Context(), r, time.Hour)
			if err != nil {
				t.Error(err)
			}
			return nil
		}
		if _, err := wrote(t.Context(), c, gen(4), 1, 17); err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
		after := m.Clone()
		d := over(after, 1)
		found, skipped := finds(t, d)
		if len(found) != 2 || len(skipped) != 0 {
			t.Fatalf("call %d: %v", n, skipped)
		}
		checkWhole(t, d, found[0], 1)
		checkWhole(t, d, found[1], 1)
		if calls.Load() <= n {
			break
		}
	}
}
