package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/keep"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/racing"
)

// stateIn is what a list says of a generation.
func stateIn(t *testing.T, c *Catalog, f find.Found) find.State {
	t.Helper()
	list, err := c.List(t.Context(), durabletest.JobName)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		if l.Generation == f.Generation {
			return l.State
		}
	}
	return ""
}

// TestSeenDamageIsMarked: what a look finds missing, short or unreadable is marked as what a read finds flipped.
func TestSeenDamageIsMarked(t *testing.T) {
	for what, harm := range map[string]func(m *memory.Store, f find.Found) error{
		"a shard is missing": func(m *memory.Store, f find.Found) error {
			return m.Delete(t.Context(), f.Run.Under(f.Index.Files[len(f.Index.Files)-1].Key))
		},
		"a shard is short": func(m *memory.Store, f find.Found) error {
			m.Bend(f.Run.Under(f.Index.Files[len(f.Index.Files)-1].Key), func(b []byte) []byte { return b[:len(b)-1] })
			return nil
		},
		"the index is missing": func(m *memory.Store, f find.Found) error {
			return m.Delete(t.Context(), f.Run.Under(f.Commit.Index.Key))
		},
		"COMMIT is flipped": func(m *memory.Store, f find.Found) error {
			m.Bend(f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation}), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
			return nil
		},
	} {
		m := memory.New()
		c := over(m, 1)
		mustWrite(t, c, gen(2), 1)
		f := find0(t, c)[0]
		if err := c.MarkRead(t.Context(), f, nil); err != nil {
			t.Fatal(err)
		}
		if err := c.MarkSeen(t.Context(), f.Run, f.Generation); err != nil || stateIn(t, c, f) != find.Good {
			t.Errorf("a whole one is %s, %v", stateIn(t, c, f), err)
		}
		was := m.Clone()
		if err := harm(m, f); err != nil {
			t.Fatal(err)
		}
		if err := c.MarkSeen(t.Context(), f.Run, f.Generation); err != nil || stateIn(t, c, f) != find.Damaged {
			t.Errorf("%s: it is %s, %v", what, stateIn(t, c, f), err)
		}
		n := len(m.Keys())
		if err := c.MarkSeen(t.Context(), f.Run, f.Generation); err != nil || len(m.Keys()) != n {
			t.Errorf("%s: another look leaves another mark, %v", what, err)
		}
		was.Before = func(call memory.Call) error {
			if call.Verb == "Get" {
				return store.ErrRefused
			}
			return nil
		}
		if err := over(was, 1).MarkSeen(t.Context(), f.Run, f.Generation); !errors.Is(err, store.ErrRefused) {
			t.Errorf("a store that refuses: %v", err)
		}
		was.Before = nil
		if stateIn(t, over(was, 1), f) != find.Good {
			t.Error("a store that refuses is marked")
		}
	}
}

// TestSeenWhileItIsDeleted: a generation that goes is not marked as damaged, and nothing is left of it.
func TestSeenWhileItIsDeleted(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	f := find0(t, c)[0]
	if err := c.Delete(t.Context(), f.Run, f.Generation, "test"); err != nil {
		t.Fatal(err)
	}
	n := len(m.Keys())
	if err := c.MarkSeen(t.Context(), f.Run, f.Generation); err != nil || len(m.Keys()) != n {
		t.Errorf("%v, %d objects, were %d", err, len(m.Keys()), n)
	}
}

// clocked is a catalog of a host whose clock is off.
func clocked(st store.Store, who string, off time.Duration) *Catalog {
	return New(st, Options{Who: who, Host: "h", Lanes: 1, Now: func() time.Time { return now.Add(off) }, Pause: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }})
}

// TestClocksDoNotOrderReads: the last record counts, whatever its reader's clock said, and of two that were put at once the one of damage.
func TestClocksDoNotOrderReads(t *testing.T) {
	rot := errors.New("chunk 9: digest differs")
	for _, first := range []error{nil, rot} {
		for _, off := range []time.Duration{-time.Hour, 0, time.Hour} {
			m := memory.New()
			c := over(m, 1)
			mustWrite(t, c, gen(2), 1)
			f := find0(t, c)[0]
			second, want := rot, find.Damaged
			if first != nil {
				second, want = nil, find.Good
			}
			if err := errors.Join(clocked(m, "other", off).MarkRead(t.Context(), f, first), c.MarkRead(t.Context(), f, second)); err != nil {
				t.Fatal(err)
			}
			found, _ := finds(t, c)
			if s := stateIn(t, c, f); s != want || (len(found) == 1) != (want == find.Good) {
				t.Errorf("%v by a clock that is %v off, then %v: it is %s, found %d", first, off, second, s, len(found))
			}
			_, err := c.Holds(t.Context(), durabletest.JobName, durabletest.Job, f.Generation)
			if (err == nil) != (want == find.Good) {
				t.Errorf("it is %s, and holds with %v", want, err)
			}
		}
	}
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	f := find0(t, c)[0]
	late := clocked(m, "late", time.Hour)
	m.Before = func(call memory.Call) error {
		if call.Verb == "PutNew" && late != nil { // what another reader found, between the list and the put of this one
			d := late
			late = nil
			return d.MarkRead(t.Context(), f, nil)
		}
		return nil
	}
	if err := c.MarkRead(t.Context(), f, rot); err != nil {
		t.Fatal(err)
	}
	if s := stateIn(t, c, f); s != find.Damaged {
		t.Errorf("good and damaged at once: it is %s", s)
	}
	if err := c.MarkRead(t.Context(), f, nil); err != nil || stateIn(t, c, f) != find.Good {
		t.Errorf("read again: it is %s, %v", stateIn(t, c, f), err)
	}
}

// TestRecordsOfBefore: one without a number is read, and gives way to one that has a number.
func TestRecordsOfBefore(t *testing.T) {
	m := memory.New()
	c := over(m, 1)
	mustWrite(t, c, gen(2), 1)
	f := find0(t, c)[0]
	said := format.Read{Generation: f.Generation, Who: "n1", At: now.Add(time.Hour).Unix(), Write: f.Write}
	b, err := said.Seal()
	if err != nil {
		t.Fatal(err)
	}
	key := f.Run.Key(format.Name{Kind: format.ReadKind, Generation: f.Generation, At: said.At, Good: true, Who: "n1"})
	if _, err := m.PutNew(t.Context(), key, b); err != nil {
		t.Fatal(err)
	}
	if s := stateIn(t, c, f); s != find.Good {
		t.Errorf("it is %s", s)
	}
	if err := c.MarkRead(t.Context(), f, store.ErrCorrupt); err != nil || stateIn(t, c, f) != find.Damaged {
		t.Errorf("it is %s, %v", stateIn(t, c, f), err)
	}
	if _, err := m.Stat(t.Context(), key); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("it stays: %v", err)
	}
}

// TestALeaseEndsByTheStoresClock: whoever deletes goes by when the lease was written, as the store says, whatever the clocks of both hosts say.
func TestALeaseEndsByTheStoresClock(t *testing.T) {
	for _, off := range []time.Duration{-2 * keep.LeaseTime, 0, 2 * keep.LeaseTime} {
		m := memory.New()
		c := over(m, 1)
		mustWrite(t, c, gen(2), 1)
		r := find0(t, c)[0].Run
		if _, err := clocked(m, "reader", off).Lease(t.Context(), r, gen(2), "reads"); err != nil {
			t.Fatal(err)
		}
		m.Age(keep.LeaseTime - time.Minute)
		for _, who := range []time.Duration{-2 * keep.LeaseTime, 0, 2 * keep.LeaseTime} {
			if err := clocked(m.Clone(), "deleter", who).Delete(t.Context(), r, gen(2), "test"); !errors.Is(err, keep.ErrPinned) {
				t.Errorf("clocks off by %v and %v: leased, and deleted: %v", off, who, err)
			}
			ended := m.Clone()
			ended.Age(time.Minute)
			if err := clocked(ended, "deleter", who).Delete(t.Context(), r, gen(2), "test"); err != nil {
				t.Errorf("clocks off by %v and %v: the lease has ended: %v", off, who, err)
			}
		}
	}
}

// TestOverABrokenOffDeletion: what is copied or committed where a deletion broke off is there afterwards and stays, or the error says why not.
func TestOverABrokenOffDeletion(t *testing.T) {
	overEntry := 0
	for n := int64(0); ; n += racing.Stride {
		src := memory.New()
		c := over(src, 1)
		mustWrite(t, c, gen(2), 1)
		mustWrite(t, c, gen(4), 1)
		f := find0(t, c)[0]
		m := src.Clone()
		dies(m, n, true)
		broke := over(m, 1).Delete(t.Context(), f.Run, gen(4), "test")
		for what, again := range map[string]func(to *Catalog) error{
			"copy":   func(to *Catalog) error { _, err := c.Copy(t.Context(), f, to); return err },
			"commit": func(to *Catalog) error { _, err := wrote(t.Context(), to, gen(4), 1, 18); return err },
		} {
			st := m.Clone()
			to := over(st, 1)
			entry, err := to.Deleting(t.Context(), f.Run, gen(4))
			if err != nil {
				t.Fatal(err)
			}
			err = again(to)
			if entry {
				overEntry++
			}
			if what == "commit" && entry {
				if !errors.Is(err, write.ErrDeleting) {
					t.Errorf("call %d: committed over an entry: %v", n, err)
				}
				continue
			}
			if err != nil && !errors.Is(err, write.ErrCommitted) {
				t.Errorf("call %d: %s: %v", n, what, err)
			}
			st.Age(2 * time.Hour)
			if _, err := to.Sweep(t.Context(), f.Run, time.Hour); err != nil {
				t.Fatal(err)
			}
			if found := find0(t, to); len(found) != 2 || found[0].Generation != gen(4) {
				t.Errorf("call %d: %s: after a sweep %d are there", n, what, len(found))
			}
		}
		if broke == nil {
			break
		}
	}
	if overEntry < 4 {
		t.Errorf("%d tries found an entry", overEntry)
	}
}

// TestCopyOverADeletionThatIsPinned: a copy that cannot finish a deletion says so.
func TestCopyOverADeletionThatIsPinned(t *testing.T) {
	src := memory.New()
	c := over(src, 1)
	mustWrite(t, c, gen(2), 1)
	f := find0(t, c)[0]
	st := src.Clone()
	to := over(st, 1)
	if err := to.Pin(t.Context(), f.Run, f.Generation, "ada", "paper", time.Time{}); err != nil {
		t.Fatal(err)
	}
	entry := format.Trash{Generation: f.Generation, Who: "n1", Nonce: "x"}
	b, err := entry.Seal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.PutNew(t.Context(), f.Run.Key(format.Name{Kind: format.TrashKind, Generation: f.Generation}), b); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Copy(t.Context(), f, to); !errors.Is(err, keep.ErrPinned) || !strings.Contains(err.Error(), "copy again") {
		t.Errorf("copied with %v", err)
	}
}

// TestOfANewerProgramNothingIsKnown: what a newer program wrote is neither good nor damaged, by a list and by a search, and both say what to do.
func TestOfANewerProgramNothingIsKnown(t *testing.T) {
	st := memory.New()
	c := with(st, 2, nil)
	mustWrite(t, c, gen(4), 1)
	mustWrite(t, c, gen(6), 1)
	f := find0(t, c)[0]
	st.Bend(f.Run.Key(format.Name{Kind: format.CommitKind, Generation: gen(6)}), func(b []byte) []byte {
		return bytes.Replace(b, fmt.Appendf(nil, `"format":%d`, format.Number), []byte(`"format":99`), 1)
	})
	st.Bend(f.Run.Under(format.SummaryKey), func(b []byte) []byte { // so does its summary
		return bytes.Replace(b, fmt.Appendf(nil, `"format":%d`, format.Number), []byte(`"format":99`), 1)
	})
	found, skipped := finds(t, c)
	if len(found) != 1 || len(skipped) != 1 || skipped[0].State != find.Unreadable || !strings.Contains(skipped[0].Reason, "use a newer one") {
		t.Errorf("found %v, passed over %+v", found, skipped)
	}
	list, err := c.List(t.Context(), f.Run.Job)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, l := range list {
		if is := l.State == find.Unreadable && strings.Contains(l.Why, "use a newer one"); is != (l.Generation == gen(6)) {
			t.Errorf("%+v", l)
		}
	}
}
