// Package catalogtest writes and spoils generations, as jobs and disks do, for tests of what reads them.
package catalogtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	filippo "filippo.io/age"
	"github.com/replicad/replicad/internal/durable"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/replica"
)

// NewKey makes a key, in a file too.
func NewKey(t *testing.T) (keys *sealed.Keys, file string) {
	t.Helper()
	id, err := filippo.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if keys, err = sealed.New([]string{id.Recipient().String()}, []filippo.Identity{id}); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "key.txt")
	if err := os.WriteFile(file, []byte("# created: now\n"+id.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return keys, file
}

// Write does what a job does for one generation.
func Write(t *testing.T, dir string, step replica.Step, id byte) {
	t.Helper()
	WriteMade(t, dir, durabletest.Make(replica.Generation{Epoch: 1, Step: step}, 2), id)
}

func WriteMade(t *testing.T, dir string, made durabletest.Generation, id byte, says ...func(*format.Commit)) {
	t.Helper()
	WriteTo(t, dir, made, id, nil, says...)
}

// WriteTo encrypts it besides.
func WriteTo(t *testing.T, dir string, made durabletest.Generation, id byte, keys *sealed.Keys, says ...func(*format.Commit)) {
	t.Helper()
	st, err := durable.Open(t.Context(), dir, durable.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	WriteInto(t, catalog.New(st, catalog.Options{Who: "daemon", Keys: keys}), made, id, says...)
}

func WriteInto(t *testing.T, c *catalog.Catalog, made durabletest.Generation, id byte, says ...func(*format.Commit)) {
	t.Helper()
	step := made.Generation.Step
	run := durabletest.Job
	run[15] = id
	r, err := c.Begin(t.Context(),
		format.Run{Job: durabletest.JobName, ID: run, Began: time.Date(2026, 11, 25, 17, 16+int(id), 0, 0, time.UTC).UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	fleet := catalog.Fleet{Cluster: durabletest.Cluster, Name: "f", Epoch: 1}
	if err := c.Claim(t.Context(), r, fleet); err != nil {
		t.Fatal(err)
	}
	a := catalog.Attempt{Run: r, Generation: made.Generation, Write: 17}
	roots := make(map[replica.Part]replica.Digest)
	of := func(p durabletest.Part) catalog.Part {
		p.Manifest.Job = run
		if p.Manifest.Part.Kind != replica.FrozenPart {
			roots[p.Manifest.Part] = p.Manifest.Root
		}
		return catalog.Part{Manifest: p.Manifest, Regions: p.Regions, Read: p.Read}
	}
	var files []format.Written
	for i, p := range made.Groups {
		f, err := c.WriteFrozen(t.Context(), r, of(made.Frozen[i]))
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.WriteGroup(t.Context(), a, of(p))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f, w)
	}
	w, err := c.WriteObject(t.Context(), a, catalog.NodeObject("b"), of(made.Private[0]), of(made.Private[1]))
	if err != nil {
		t.Fatal(err)
	}
	said := format.Commit{Position: replica.Position{Epoch: 1, Step: step}, Layout: made.Layout, Lineage: replica.Lineage{{Epoch: 1}},
		Metrics: map[string]format.Metric{"loss": format.Metric(100 - step)},
		Notes:   map[string]string{"lr": "0.1"}, Provenance: map[string]string{"torch": "2.15"}}
	for _, say := range says {
		say(&said)
	}
	if _, err := c.Commit(t.Context(), a, fleet, said, roots, append(files, w)); err != nil {
		t.Fatal(err)
	}
}

// Delete does what retention does.
func Delete(t *testing.T, dir string, step replica.Step) {
	t.Helper()
	st, err := durable.Open(t.Context(), dir, durable.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	DeleteIn(t, catalog.New(st, catalog.Options{Who: "daemon"}), step)
}

func DeleteIn(t *testing.T, c *catalog.Catalog, step replica.Step) {
	t.Helper()
	runs, err := c.Runs(t.Context(), durabletest.JobName)
	if err != nil || len(runs) != 1 {
		t.Fatal(runs, err)
	}
	if err := c.Delete(t.Context(), runs[0], replica.Generation{Epoch: 1, Step: step}, "retention"); err != nil {
		t.Fatal(err)
	}
}

// Bend flips a bit in the middle of a file.
func Bend(t *testing.T, pattern ...string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-20] ^= 1
	if err := os.WriteFile(names[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
}
