package catalog

import (
	"errors"
	"testing"

	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
)

// stateIn is what a list says of a generation.
func stateIn(t *testing.T, c *Catalog, f Found) State {
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
	for what, harm := range map[string]func(m *memory.Store, f Found) error{
		"a shard is missing": func(m *memory.Store, f Found) error {
			return m.Delete(t.Context(), f.Run.Under(f.Index.Files[len(f.Index.Files)-1].Key))
		},
		"a shard is short": func(m *memory.Store, f Found) error {
			m.Bend(f.Run.Under(f.Index.Files[len(f.Index.Files)-1].Key), func(b []byte) []byte { return b[:len(b)-1] })
			return nil
		},
		"the index is missing": func(m *memory.Store, f Found) error {
			return m.Delete(t.Context(), f.Run.Under(f.Commit.Index.Key))
		},
		"COMMIT is flipped": func(m *memory.Store, f Found) error {
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
		if err := c.MarkSeen(t.Context(), f.Run, f.Generation); err != nil || stateIn(t, c, f) != Good {
			t.Errorf("a whole one is %s, %v", stateIn(t, c, f), err)
		}
		was := m.Clone()
		if err := harm(m, f); err != nil {
			t.Fatal(err)
		}
		if err := c.MarkSeen(t.Context(), f.Run, f.Generation); err != nil || stateIn(t, c, f) != Damaged {
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
		if stateIn(t, over(was, 1), f) != Good {
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
