package catalog

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// having lists the objects of a store that have a text in the clear.
func having(t testing.TB, m *memory.Store, text string) (keys []string) {
	t.Helper()
	err := m.List(t.Context(), "", "", func(info store.Info) error {
		b := make([]byte, info.Size)
		if err := m.ReadRange(t.Context(), info.Key, 0, b); err != nil {
			return err
		}
		if bytes.Contains(b, []byte(text)) {
			keys = append(keys, info.Key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestWhatIsNotSaidToAStore: where a catalog encrypts, neither the program's arguments nor what is in the kept files lies in the store in the clear: in none
// that a run writes, and in none that a copy is made of. Without encryption both are there, so that the test can fail.
func TestWhatIsNotSaidToAStore(t *testing.T) {
	const argument, inFile = "--wandb-key=5ec4e7a46um3n7", "hf_t0k3n1n4f1l3"
	id, keys := pair(t)
	writes := func(c *Catalog) find.Found {
		t.Helper()
		said := map[string]string{"program": "train.py", format.Arguments: argument}
		r, err := c.Begin(t.Context(), format.Run{Job: durabletest.JobName, ID: durabletest.Job, Owner: 7, Began: began.UnixMilli(), Program: said})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Claim(t.Context(), r, fleet); err != nil {
			t.Fatal(err)
		}
		if _, err := c.KeepFiles(t.Context(), r, tarOf(t, inFile)); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, c, gen(2), 1)
		f := find0(t, c)[0]
		a := write.Attempt{Run: f.Run, Generation: gen(3), Write: 1}
		made := durabletest.Make(gen(3), 1)
		g, gerr := c.WriteGroup(t.Context(), a, part(made.Groups[0]))
		fr, ferr := c.WriteFrozen(t.Context(), f.Run, part(made.Frozen[0]))
		p, perr := c.WriteObject(t.Context(), a, write.NodeObject("b"), part(made.Private[0]), part(made.Private[1]))
		if err := errors.Join(gerr, ferr, perr); err != nil {
			t.Fatal(err)
		}
		roots := map[replica.Part]replica.Digest{}
		for _, p := range append(made.Groups, made.Private...) {
			roots[p.Manifest.Part] = p.Manifest.Root
		}
		com := f.Commit
		com.Position, com.At, com.Provenance = replica.Position{Epoch: 1, Step: 3}, 0, said
		if _, err := c.Commit(t.Context(), a, fleet, com, roots, []format.Written{g, fr, p}); err != nil {
			t.Fatal(err)
		}
		if said[format.Arguments] != argument {
			t.Error("what the caller said was changed")
		}
		return find0(t, c)[0]
	}
	inFiles := func(c *Catalog, f find.Found) (text string) {
		t.Helper()
		err := c.ReadKept(t.Context(), f, func(_ kept.File, r io.Reader) error {
			b, err := io.ReadAll(r)
			text += string(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	plain, locked := memory.New(), memory.New()
	of := with(plain, 1, nil)
	f := writes(of)
	if len(having(t, plain, argument)) != 2 || len(having(t, plain, inFile)) != 1 || f.Provenance[format.Arguments] != argument {
		t.Fatalf("without encryption the arguments are in %q, the files in %q", having(t, plain, argument), having(t, plain, inFile))
	}
	c := with(locked, 1, keys)
	g := writes(c)
	copied, opened := memory.New(), memory.New()
	if err := of.CopyAnew(t.Context(), f, with(copied, 1, keys)); err != nil {
		t.Fatal(err)
	}
	for what, m := range map[string]*memory.Store{"written": locked, "copied": copied} {
		for _, text := range []string{argument, inFile} {
			if keys := having(t, m, text); len(keys) > 0 {
				t.Errorf("%s: %q stands in %q", what, text, keys)
			}
		}
		c := with(m, 1, opening(t, id))
		f := find0(t, c)[0]
		if text := inFiles(c, f); text != inFile {
			t.Errorf("%s: the files read as %q", what, text)
		}
		without := with(m, 1, nil)
		f = find0(t, without)[0]
		if faults, err := without.Verify(t.Context(), f, nil); err != nil || len(faults) > 0 {
			t.Errorf("%s: without a key it verifies with %v, %v", what, faults, err)
		}
		if err := without.ReadKept(t.Context(), f, func(kept.File, io.Reader) error { return nil }); !errors.Is(err, find.ErrLocked) {
			t.Errorf("%s: without a key the files read with %v", what, err)
		}
	}
	reader := with(locked, 1, opening(t, id))
	to := with(opened, 1, nil)
	for range 2 { // again is no error
		if err := reader.CopyAnew(t.Context(), g, to); err != nil {
			t.Fatal(err)
		}
	}
	if text := inFiles(to, find0(t, to)[0]); text != inFile {
		t.Errorf("decrypted, the files read as %q", text)
	}
}
