package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/replica"
)

// --from names a generation as the other commands do; what is there is found, and what is not is said.
func TestOriginOfARun(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20, 30} {
		catalogtest.Write(t, dir, step, 1)
	}
	t.Chdir(dir)
	url := "file://" + dir
	for _, tc := range []struct {
		from, job string
		asked     string
		step      replica.Step
		failed    string
	}{
		{dir, "", dir, 30, ""},
		{url + "@last", "", url + "@last", 30, ""},
		{".", ckptJob, dir + "/" + ckptJob, 30, ""},
		{url + "/" + ckptJob + "@20", "", url + "/" + ckptJob + "@20", 20, ""},
		{dir + "/@10.e1", ckptJob, dir + "/" + ckptJob + "@10.e1", 10, ""},
		{dir + "@best:loss", "", dir + "@best:loss", 30, ""},
		{dir + "@best", "", dir + "@best", 0, "best.json"},
		{dir + "@40", "", dir + "@40", 0, "there is no generation of step 40"},
		{dir, "other", dir + "/other", 0, "no generation that is whole"},
		{filepath.Join(dir, "away", "far"), "", filepath.Join(dir, "away", "far"), 0, "no generation that is whole"},
	} {
		f := runFlags{from: tc.from, fromJob: tc.job}
		var errout bytes.Buffer
		got, err := f.origin(t.Context(), stdio{err: &errout})
		f.lease.End()
		if err != nil || got.Asked != tc.asked || got.Generation.Step != tc.step || !strings.Contains(got.Failed, tc.failed) || (got.Failed == "") != (tc.failed == "") {
			t.Errorf("%s, job %q: %v, %q, %v", tc.from, tc.job, got, got.Failed, err)
			continue
		}
		if err := got.Check(); err != nil {
			t.Errorf("%s: %v", tc.from, err)
		}
		if tc.failed == "" && (got.URL != url || got.Job != ckptJob || got.World != 2 || !strings.HasPrefix(got.Place, ckptJob+"/")) {
			t.Errorf("%s: %+v", tc.from, got)
		}
		if tc.failed == "" {
			if info, err := os.Stat(filepath.Join(dir, got.Place)); err != nil || !info.IsDir() {
				t.Errorf("%s: its place: %v", tc.from, err)
			}
		}
	}
	catalogtest.Bend(t, dir, ckptJob, "*", "step-00000030.e1", "group-0.*.safetensors")
	expect(t, exitFailed, []string{"verify", dir}, "step 30")
	f := runFlags{from: dir + "@30"}
	if got, err := f.origin(t.Context(), stdio{err: &bytes.Buffer{}}); err != nil || !strings.Contains(got.Failed, "step 30 of "+url+"/"+ckptJob) {
		t.Errorf("of one that failed a read: %+v, %v", got, err)
	}
	f.lease.End()
	f.from = dir
	if got, err := f.origin(t.Context(), stdio{err: &bytes.Buffer{}}); err != nil || got.Generation.Step != 20 {
		t.Errorf("the newest that is whole: %+v, %v", got, err)
	}
	f.lease.End()
	f = runFlags{}
	if got, err := f.origin(t.Context(), stdio{}); got != nil || err != nil {
		t.Errorf("without --from: %+v, %v", got, err)
	}
}

// Retention leaves a generation that a job begins with until its ranks have read it, or its launcher has ended.
func TestOriginIsKeptUntilTheJobHasBegun(t *testing.T) {
	for name, ends := range map[string]func(o *ckpt.Lease){"the ranks have read it": (*ckpt.Lease).Begun, "the launcher ends": (*ckpt.Lease).End} {
		dir := t.TempDir()
		for _, step := range []replica.Step{10, 20} {
			catalogtest.Write(t, dir, step, 1)
		}
		expect(t, 0, []string{"verify", dir + "@20"}) // one that nobody has read pushes nothing out
		f := runFlags{from: dir + "@10"}
		if got, err := f.origin(t.Context(), stdio{err: &bytes.Buffer{}}); err != nil || got.Failed != "" {
			t.Fatalf("%+v, %v", got, err)
		}
		prune := func() string { return expect(t, 0, []string{"prune", dir, "--keep", "1"}) }
		if out := prune(); !strings.Contains(out, "kept: "+ckptJob+" step 10") {
			t.Errorf("while it is read: %s", out)
		}
		ends(f.lease)
		<-f.lease.Ended
		if out := prune(); !strings.Contains(out, "deleted: "+ckptJob+" step 10") {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// best.json says which is the best, where the daemons keep generations by a metric.
func TestOriginByHint(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20} {
		catalogtest.Write(t, dir, step, 1)
	}
	st, err := place.OpenStore(t.Context(), dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	found, _, err := catalog.New(st, catalog.Options{}).Find(t.Context(), ckptJob, replica.JobID{})
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	hint := format.Hint{Run: found[1].Run.Run, Generation: found[1].Generation, Position: found[1].Position, SHA256: format.Sum(nil), Metric: "loss", Value: 90}
	b, err := hint.Seal()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ckptJob, format.BestKey), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := runFlags{from: dir + "@best"}
	defer func() { f.lease.End() }()
	if got, err := f.origin(t.Context(), stdio{}); err != nil || got.Failed != "" || got.Generation.Step != 10 {
		t.Errorf("%v, %q, %v", got, got.Failed, err)
	}
	f.lease.End()
	catalogtest.Delete(t, dir, 10)
	if got, err := f.origin(t.Context(), stdio{}); err != nil || !strings.Contains(got.Failed, "names step 10") || !strings.Contains(got.Failed, "@best:loss") {
		t.Errorf("of one that is gone: %v, %q, %v", got, got.Failed, err)
	}
}

// What can be no name is refused at once, and shows no password.
func TestOriginsThatAreNone(t *testing.T) {
	for name, f := range map[string]runFlags{
		"want @STEP":               {from: "/ckpt@newest"},
		"keys, tokens and regions": {from: "s3://me:secret@b/lm"},
		"keys, tokens":             {from: "s3://b/lm?secret=1"},
		"give both":                {fromJob: "lm"},
		"--from-job":               {from: "/ckpt", fromJob: "../secret"},
		"of at most":               {from: "/" + strings.Repeat("x", replica.MaxOrigin)},
		"want URL[@STEP]":          {from: "@20"},
	} {
		if got, err := f.origin(context.Background(), stdio{}); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret=") || strings.Contains(err.Error(), "me:") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
