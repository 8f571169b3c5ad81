package tier

import (
	"context"
	"errors"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/replica"
)

// someKeys encrypt to one recipient, and open that.
func someKeys(t *testing.T) *sealed.Keys {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	k, err := sealed.New([]string{id.Recipient().String()}, []age.Identity{id})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Who has the key resumes from what is encrypted. Who has none is told, and gets no older generation in its place; it reads back, keeps and prunes it.
func TestEncrypted(t *testing.T) {
	dir, keys := t.TempDir(), someKeys(t)
	open := func(k *sealed.Keys) *Tier {
		tier, err := OpenDirectory(t.Context(), dir, Settings{Reader: "n1", Keys: k})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tier.Close() })
		return tier
	}
	plain := newFleet(t, open(nil), "a")
	plain.writes(5, 10)
	f := newFleet(t, open(keys), "a")
	f.of.Number = plain.of.Number
	f.writes(5, 20, 30)
	if err := f.reads(30); err != nil {
		t.Fatal(err)
	}
	without := newFleet(t, open(nil), "b")
	if _, _, err := without.looks(30); !errors.Is(err, catalog.ErrLocked) || !strings.Contains(err.Error(), "step 30 of file://"+dir) || !strings.Contains(err.Error(), keys.Recipients()[0]) {
		t.Errorf("without a key: %v", err)
	}
	if _, err := without.tier.Open(t.Context(), name, durabletest.Job, gen(1, 30), replica.OfGroup(0)); !errors.Is(err, catalog.ErrLocked) {
		t.Errorf("without a key: %v", err)
	}
	if err := without.reads(20); err != nil {
		t.Errorf("its bytes are read back without a key: %v", err)
	}
	without.wants("30 good, 20 good, 10 unread")
	b := newFleet(t, open(keys), "b")
	if err := b.resumes(30); err != nil {
		t.Fatal(err)
	}
	r, err := b.tier.Open(t.Context(), name, durabletest.Job, gen(1, 30), replica.OfGroup(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.ReadChunk(0, nil); err != nil {
		t.Error(err)
	}
	if err := plain.tier.Prune(t.Context(), Retention{Name: name, Job: durabletest.Job, Lineage: plain.line, Keep: replica.Keep{Last: 1}}); err != nil {
		t.Fatal(err)
	}
	without.wants("30 good")
}

// What is encrypted and older is passed over, by name.
func TestAnEncryptedOneBehindAPlainOne(t *testing.T) {
	dir, keys := t.TempDir(), someKeys(t)
	tiers := map[*sealed.Keys]*Tier{}
	for _, k := range []*sealed.Keys{keys, nil} {
		tier, err := OpenDirectory(t.Context(), dir, Settings{Reader: "n1", Keys: k})
		if err != nil {
			t.Fatal(err)
		}
		defer tier.Close()
		tiers[k] = tier
	}
	first := newFleet(t, tiers[keys], "a")
	first.writes(5, 10)
	f := newFleet(t, tiers[nil], "a")
	f.of.Number = first.of.Number
	f.writes(5, 20)
	found, skipped, err := f.tier.Find(context.WithoutCancel(t.Context()), name, durabletest.Job)
	if err != nil || len(found) != 1 || found[0].Generation != gen(1, 20) || len(skipped) != 1 || skipped[0].State != catalog.Encrypted || !strings.Contains(skipped[0].Plain, "durable_identities") {
		t.Errorf("%+v, %+v, %v", found, skipped, err)
	}
}
