package tier

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/replica"
)

func pins(st *memory.Store) []string {
	return slices.DeleteFunc(st.Keys(), func(k string) bool { return !strings.Contains(k, "/pins/") })
}

// What a daemon reads nobody deletes: for as long as a part is open, however long that is, and no longer.
func TestWhatIsReadIsLeased(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tier, st := inMemory(t, Settings{Reader: "n1"})
		f := newFleet(t, tier, "a")
		f.writes(5, 10, 20)
		var parts []Reader
		for _, p := range []replica.Part{replica.OfGroup(0), replica.OfRank(0)} {
			r, err := tier.Open(t.Context(), name, durabletest.Job, gen(1, 10), p)
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, r)
		}
		other := catalog.New(st, catalog.Options{Who: "ada"})
		r, err := other.At(t.Context(), name, durabletest.Job)
		if err != nil {
			t.Fatal(err)
		}
		deletes := func() error { return other.Delete(t.Context(), r, gen(1, 10), "a test") }
		for range 2 {
			time.Sleep(5 * catalog.LeaseTime)
			if err := deletes(); !errors.Is(err, catalog.ErrPinned) || len(pins(st)) != 1 {
				t.Errorf("what is read is deleted with %v; pins %q", err, pins(st))
			}
			parts[0].Close()
			parts = parts[1:]
		}
		synctest.Wait()
		if len(pins(st)) != 0 {
			t.Errorf("there are the pins %q", pins(st))
		}
		if err := deletes(); err != nil {
			t.Error(err)
		}
	})
}

// A generation that is being deleted is not read.
func TestWhatIsBeingDeletedIsNotRead(t *testing.T) {
	tier, st := inMemory(t, Settings{Reader: "n1"})
	f := newFleet(t, tier, "a")
	f.writes(5, 10)
	found, _, err := tier.Find(t.Context(), name, durabletest.Job)
	if err != nil {
		t.Fatal(err)
	}
	if err := tier.cat.Delete(t.Context(), found[0].Run, gen(1, 10), "a test"); err != nil {
		t.Fatal(err)
	}
	if err := tier.ReadBack(t.Context(), found[0], How{}); !errors.Is(err, catalog.ErrNone) || len(pins(st)) != 0 || tier.isRead(found[0].Where()) {
		t.Errorf("it is read with %v; pins %q", err, pins(st))
	}
}

// A tier that is closed ends its leases, and one that nobody reads under is no reason to keep a generation.
func TestLeasesEnd(t *testing.T) {
	st := memory.New()
	tier := New(st, Settings{Reader: "n1"})
	f := newFleet(t, tier, "a")
	f.writes(5, 10, 20)
	if err := f.reads(20); err != nil {
		t.Fatal(err)
	}
	f.writes(1, 30)
	f.wants("30 unread, 20 good") // 10 went, and 20 stays until 30 was read
	r, err := tier.Open(t.Context(), name, durabletest.Job, gen(1, 20), replica.OfGroup(0))
	if err != nil || len(pins(st)) != 1 {
		t.Fatalf("pins %q, %v", pins(st), err)
	}
	if err := tier.Close(); err != nil || len(pins(st)) != 0 {
		t.Errorf("closed with %v, there are the pins %q", err, pins(st))
	}
	r.Close()
}

// A lease whose reader died keeps a generation from the rule for as long as it lasts.
func TestALeaseThatIsOver(t *testing.T) {
	tier, st := inMemory(t, Settings{Reader: "n1"})
	f := newFleet(t, tier, "a")
	f.writes(5, 10, 20)
	if err := f.reads(20); err != nil {
		t.Fatal(err)
	}
	found, _, err := tier.Find(t.Context(), name, durabletest.Job)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.New(st, catalog.Options{Who: "n8"}).Lease(t.Context(), found[1].Run, gen(1, 10), "reads"); err != nil {
		t.Fatal(err)
	}
	f.writes(1, 30)
	f.wants("30 unread, 20 good, 10 unread")
	st.Age(catalog.LeaseTime)
	f.writes(1, 40)
	f.wants("40 unread, 30 unread, 20 good")
}
