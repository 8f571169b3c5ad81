package catalog

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
)

// tarOf is a tar of one file.
func tarOf(t testing.TB, text string) func() ([]byte, error) {
	t.Helper()
	b, err := kept.Pack([]kept.Source{{Name: "tok/config.json", Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return func() ([]byte, error) { return b, nil }
}

// begun is a run that has claimed its first epoch.
func begun(t testing.TB, c *Catalog) find.Run {
	t.Helper()
	r, err := c.Begin(t.Context(), format.Run{Job: durabletest.JobName, ID: durabletest.Job, Owner: 7, Began: began.UnixMilli()})
	if err == nil {
		err = c.Claim(t.Context(), r, fleet)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// files are those that a generation's run carries.
func files(t testing.TB, c *Catalog, f find.Found) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := c.ReadKept(t.Context(), f, func(f kept.File, r io.Reader) error {
		b, err := io.ReadAll(r)
		got[f.Name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// must is the result of what did not fail.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// A run carries the first tar that is put, whoever puts another; commits name it from then on, and Verify, Copy, Strip and Sweep know it. It goes with
// the run.
func TestKeptFiles(t *testing.T) {
	m := memory.New()
	clock := now
	m.Now = func() time.Time { return clock }
	c := over(m, 4)
	mustWrite(t, c, gen(2), 1)
	r := begun(t, c)
	first := must(c.KeepFiles(t.Context(), r, tarOf(t, "first")))(t)
	for _, again := range []*Catalog{c, over(m, 1)} { // one that knows it, and a program that starts now
		there := must(again.KeepFiles(t.Context(), r, func() ([]byte, error) { return nil, errors.New("asked for without need") }))(t)
		if there != first || first.Key != format.KeptKey || first.SHA256 != format.Sum(must(tarOf(t, "first")())(t)) {
			t.Fatalf("%+v, then %+v", first, there)
		}
	}
	trained(t.Context(), t, c, gen(4), 1)
	found := find0(t, c)
	if found[0].KeptFiles == nil || *found[0].KeptFiles != first || found[1].KeptFiles != nil || len(files(t, c, found[1])) != 0 {
		t.Fatalf("%+v, %+v", found[0].KeptFiles, found[1].KeptFiles)
	}
	want := map[string]string{"tok/config.json": "first"}
	if got := files(t, c, found[0]); !maps.Equal(got, want) {
		t.Fatal(got)
	}
	if faults, err := c.Verify(t.Context(), found[0], nil); err != nil || len(faults) != 0 {
		t.Error(faults, err)
	}

	to := over(memory.New(), 4)
	for range 2 {
		if mended, err := c.Copy(t.Context(), found[0], to); err != nil || mended {
			t.Fatal(mended, err)
		}
		if got := files(t, to, find0(t, to)[0]); !maps.Equal(got, want) {
			t.Fatal(got)
		}
	}
	if _, err := to.Strip(t.Context(), find0(t, to)[0], "test", false); err != nil {
		t.Fatal(err)
	}
	if bare := find0(t, to)[0]; !bare.Stripped || !maps.Equal(files(t, to, bare), want) {
		t.Errorf("stripped: %+v", bare.KeptFiles)
	}

	clock = clock.Add(time.Hour)
	if s, err := c.Sweep(t.Context(), r, time.Minute); err != nil || slices.Contains(s.Objects, r.Under(format.KeptKey)) {
		t.Fatal(s, err)
	}
	for _, f := range found {
		if err := c.Delete(t.Context(), r, f.Generation, "test"); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := c.Sweep(t.Context(), r, time.Minute); err != nil || !slices.Contains(m.Keys(), r.Under(format.KeptKey)) {
		t.Fatal(s, err)
	}
	clock = clock.Add(2 * time.Hour)
	if gone, err := c.Clear(t.Context(), r, time.Hour); err != nil || !gone || slices.Contains(m.Keys(), r.Under(format.KeptKey)) {
		t.Errorf("cleared %v, %v: %v", gone, err, m.Keys())
	}
}

// Of several that put a tar at once one wins, and all are told which, also where the store ignores conditions: there the last one may, as each of them
// finds by reading back.
func TestKeptFilesRace(t *testing.T) {
	for _, ignores := range []bool{false, true} {
		m := memory.New()
		m.Heedless = ignores
		c := with(m, 4, encrypting, ignoring(ignores))
		r := begun(t, c)
		var wg sync.WaitGroup
		got := make([]format.Ref, 8)
		for i := range got {
			one, tar := with(m.Client(), 1, encrypting, ignoring(ignores)), tarOf(t, strings.Repeat("x", i))
			wg.Go(func() {
				var err error
				if got[i], err = one.KeepFiles(context.WithoutCancel(t.Context()), r, tar); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		there := must(over(m, 1).KeepFiles(t.Context(), r, nil))(t)
		for i, ref := range got {
			if ref != there && !ignores {
				t.Errorf("%d was told %v, and there is %v", i, ref, there)
			}
		}
	}
}

// What is wrong with the tar costs no generation: it is named by Verify and told, the state is committed, read and copied as before.
func TestKeptFilesDamaged(t *testing.T) {
	for what, bend := range map[string]func([]byte) []byte{
		"gone":     func([]byte) []byte { return nil },
		"one byte": func(b []byte) []byte { b[len(b)-1535] ^= 1; return b },
		"no tar":   func([]byte) []byte { return []byte("hello") },
	} {
		m := memory.New()
		c := over(m, 4)
		r := begun(t, c)
		must(c.KeepFiles(t.Context(), r, tarOf(t, "first")))(t)
		mustWrite(t, c, gen(2), 1)
		m.Bend(r.Under(format.KeptKey), bend)
		var told []error
		note := noting(func(err error) { told = append(told, err) })
		c = with(m, 4, encrypting, note)
		f := find0(t, c)[0]
		faults, err := c.Verify(t.Context(), f, nil)
		if err != nil || len(faults) != 1 || !faults[0].Beside || faults[0].Twin || faults[0].Key != format.KeptKey {
			t.Errorf("%s: %+v, %v", what, faults, err)
		}
		if err := c.ReadKept(t.Context(), f, func(kept.File, io.Reader) error { t.Error("a file is given"); return nil }); !damage.Is(err) {
			t.Errorf("%s: %v", what, err)
		}
		to := with(memory.New(), 4, encrypting, note)
		if _, err := c.Copy(t.Context(), f, to); err != nil || len(told) != 1 || !strings.Contains(told[0].Error(), "are not copied") {
			t.Errorf("%s: %v, %v", what, told, err)
		}
		mustWrite(t, c, gen(3), 1)
		is := find0(t, c)[0].KeptFiles
		switch what {
		case "no tar", "one byte": // a commit must not name what rotted as if it were what was put
			if is != nil || len(told) != 2 || !strings.Contains(told[1].Error(), "name no kept files") {
				t.Errorf("%s: %+v, %v", what, is, told)
			}
			if _, err := c.KeepFiles(t.Context(), r, tarOf(t, "again")); !damage.Is(err) {
				t.Errorf("%s: %v", what, err)
			}
		case "gone":
			if there := must(c.KeepFiles(t.Context(), r, tarOf(t, "first")))(t); is != nil || there != *f.KeptFiles {
				t.Errorf("%s: %+v", what, is)
			}
			if faults, err := c.Verify(t.Context(), f, nil); err != nil || len(faults) != 0 {
				t.Errorf("%s: put again: %v, %v", what, faults, err)
			}
		}
	}
}

// A copy mends a damaged tar, and leaves another one alone that the run carries there.
func TestKeptFilesMended(t *testing.T) {
	m, n := memory.New(), memory.New()
	c := over(m, 4)
	r := begun(t, c)
	must(c.KeepFiles(t.Context(), r, tarOf(t, "first")))(t)
	mustWrite(t, c, gen(2), 1)
	f := find0(t, c)[0]
	var told []error
	copied := func() *Catalog {
		to := with(n, 4, encrypting, noting(func(err error) { told = append(told, err) }))
		if _, err := c.Copy(t.Context(), f, to); err != nil {
			t.Fatal(err)
		}
		return to
	}
	copied()
	n.Bend(r.Under(format.KeptKey), func(b []byte) []byte { return b[:100] })
	if to := copied(); files(t, to, find0(t, to)[0])["tok/config.json"] != "first" || len(told) != 0 {
		t.Error(told)
	}
	other := must(tarOf(t, "other")())(t)
	n.Bend(r.Under(format.KeptKey), func([]byte) []byte { return other })
	to := copied()
	if b, _, err := n.Get(t.Context(), r.Under(format.KeptKey), format.MaxDocument); err != nil || string(b) != string(other) || len(told) != 1 || !strings.Contains(told[0].Error(), "carries other files") {
		t.Error(told, err)
	}
	_, err := to.KeepFiles(t.Context(), r, func() ([]byte, error) { return []byte("no tar"), nil })
	if err != nil { // it is there already: nothing is asked for
		t.Error(err)
	}
	n.Bend(r.Under(format.KeptKey), func([]byte) []byte { return nil })
	if _, err := to.KeepFiles(t.Context(), r, func() ([]byte, error) { return []byte("no tar"), nil }); !errors.Is(err, kept.ErrCorrupt) {
		t.Error(err)
	}
	if _, err := n.Stat(t.Context(), r.Under(format.KeptKey)); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("what is no tar was put: %v", err)
	}
}

// A copy that is decrypted has the files too.
func TestKeptFilesAreCopiedAnew(t *testing.T) {
	_, keys := pair(t)
	m := memory.New()
	c := with(m, 1, keys)
	r := begun(t, c)
	must(c.KeepFiles(t.Context(), r, tarOf(t, "first")))(t)
	trained(t.Context(), t, c, gen(4), 1)
	to := over(memory.New(), 1)
	if err := c.CopyAnew(t.Context(), find0(t, c)[0], to); err != nil {
		t.Fatal(err)
	}
	if got := files(t, to, find0(t, to)[0]); !maps.Equal(got, map[string]string{"tok/config.json": "first"}) {
		t.Error(got)
	}
}
