package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/keep"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/racing"
)

// marks are the records of reads of a run's generation that lie there.
func marks(m *memory.Store, f find.Found) (list []string) {
	for _, key := range m.Keys() {
		if n := format.ParseName(strings.TrimPrefix(key, f.Run.Prefix())); n.Kind == format.ReadKind && n.Generation == f.Generation {
			list = append(list, key)
		}
	}
	return list
}

// TestMarkBesideADeletion records a read beside a deletion, which comes before each call of it, and begins it before each call of the deletion: no record is left
// of what is gone.
func TestMarkBesideADeletion(t *testing.T) {
	for _, failed := range []error{nil, store.ErrCorrupt} {
		for _, inMark := range []bool{true, false} {
			gone := false
			for n := int64(0); ; n += racing.Stride {
				m := memory.New()
				c := over(m, 1)
				mustWrite(t, c, gen(2), 1)
				mustWrite(t, c, gen(4), 1)
				f := find0(t, c)[1]
				var merr error
				mark := func() error { merr = over(m, 1).MarkRead(t.Context(), f, failed); return nil }
				remove := func() error { return over(m, 1).Delete(t.Context(), f.Run, f.Generation, "test") }
				first, other := mark, remove
				if !inMark {
					first, other = remove, mark
				}
				var calls atomic.Int64
				m.Before = func(memory.Call) error {
					if calls.Add(1)-1 == n {
						m.Before = nil
						return other()
					}
					return nil
				}
				if err := first(); err != nil {
					t.Fatal(err)
				}
				if m.Before != nil {
					break
				}
				gone = gone || errors.Is(merr, find.ErrNone)
				if merr != nil && !errors.Is(merr, find.ErrNone) {
					t.Errorf("call %d: %v", n, merr)
				}
				if left := marks(m, f); len(left) > 0 {
					t.Errorf("failed %v, in the mark %v, call %d: left is %v", failed, inMark, n, left)
				}
			}
			if !gone && failed == nil {
				t.Error("no deletion was noticed")
			}
		}
	}
}

// TestOrphans: a record of a read, or a pin, of a generation of which nothing else is left keeps no frozen part, and goes. Where its own objects
// lie there, somebody may bring its COMMIT back, and they stay.
func TestOrphans(t *testing.T) {
	for _, objects := range []bool{false, true} {
		t.Run(fmt.Sprint(objects), func(t *testing.T) {
			m := memory.New()
			c := over(m, 1)
			mustWrite(t, c, gen(2), 1)
			mustWrite(t, c, gen(4), 1)
			f := find0(t, c)[1]
			if err := c.MarkRead(t.Context(), f, nil); err != nil {
				t.Fatal(err)
			}
			if err := c.Pin(t.Context(), f.Run, f.Generation, "ada", "a test", time.Time{}); err != nil {
				t.Fatal(err)
			}
			commit := f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation})
			if err := m.Delete(t.Context(), commit); err != nil {
				t.Fatal(err)
			}
			superseded := ""
			for _, key := range m.Keys() {
				n := format.ParseName(strings.TrimPrefix(key, f.Run.Prefix()))
				if n.Kind == format.SharedKind && superseded == "" {
					n.Root[0] ^= 1
					superseded = f.Run.Key(n)
				}
				if !objects && (n.Kind == format.ShardKind || n.Kind == format.IndexKind) && n.Generation == f.Generation {
					if err := m.Delete(t.Context(), key); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := m.PutNew(t.Context(), superseded, []byte("of a generation that is gone")); err != nil {
				t.Fatal(err)
			}
			m.Age(2 * time.Hour)
			if _, err := c.Sweep(t.Context(), f.Run, keep.LeastGrace); err != nil {
				t.Fatal(err)
			}
			if is := slices.Contains(m.Keys(), superseded); is != objects {
				t.Errorf("the frozen part is there: %v", is)
			}
			if is := len(marks(m, f)) > 0; is != objects {
				t.Errorf("the record of its read is there: %v", is)
			}
			if is := len(left(t, m, "-ada"))+len(left(t, m, "-ada.json")) > 1; is != objects {
				t.Errorf("the pin is there: %v of %v", is, m.Keys())
			}
			checkWhole(t, c, find1(t, c), 1)
		})
	}
}

// find1 is the newest that is found, whatever is passed over.
func find1(t *testing.T, c *Catalog) find.Found {
	t.Helper()
	found, _ := finds(t, c)
	if len(found) != 1 {
		t.Fatalf("found %d", len(found))
	}
	return found[0]
}
