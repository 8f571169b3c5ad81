package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/durable/storetest"
	"github.com/replicad/replicad/replica"
)

const ckptJob = durabletest.JobName

// ckptRows runs `ckpt ls --json`.
func ckptRows(t *testing.T, args ...string) (rows []ckpt.Row) {
	t.Helper()
	code, out, errout := try(t, append([]string{"ckpt", "ls", "--json"}, args...)...)
	if code != exitOK {
		t.Fatalf("code %d: %s", code, errout)
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// expect runs a command and looks for texts in what it prints.
func expect(t *testing.T, code int, args []string, texts ...string) string {
	t.Helper()
	got, out, errout := try(t, append([]string{"ckpt"}, args...)...)
	if got != code {
		t.Errorf("%v: code %d: %s%s", args, got, out, errout)
	}
	for _, want := range texts {
		if !strings.Contains(out+errout, want) {
			t.Errorf("%v: no %q in: %s%s", args, want, out, errout)
		}
	}
	return out
}

func TestCkpt(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20, 30} {
		catalogtest.Write(t, dir, step, 0)
	}
	for _, where := range []string{dir, "file://" + dir, filepath.Join(dir, ckptJob), filepath.Join(dir, ckptJob, "20261125T1716Z-ab010203")} {
		if rows := ckptRows(t, where); len(rows) != 3 || rows[0].Step != 30 || rows[0].State != catalog.Unread || rows[0].Bytes == 0 || rows[0].Metrics["loss"] != 70 {
			t.Errorf("%s: %+v", where, rows)
		}
	}
	expect(t, exitOK, []string{"ls", dir}, "STEP", "unread", "loss=70", ckptJob)
	expect(t, exitOK, []string{"show", dir + "@20", "--tensors"}, "step 20 of epoch 1", "lr = 0.1", "torch = 2.15", "weight", "[10 7]", "shard(0)", "python's generator", `"epoch":3`)
	expect(t, exitOK, []string{"show", dir + "@20", "--json"}, `"sgd"`, `"sha256"`)
	expect(t, exitOK, []string{"verify", dir}, "step 30", "good", "100 %")
	if rows := ckptRows(t, dir); rows[0].State != catalog.Good || rows[0].Read == nil || rows[1].State != catalog.Unread {
		t.Errorf("%+v", rows)
	}
	expect(t, exitOK, []string{"diff", dir + "@20", dir + "@20"}, "equal")
	expect(t, exitFailed, []string{"diff", dir + "@20", dir + "@30"}, "elements differ", "differences between step 20 and step 30")
	expect(t, exitFailed, []string{"show", dir + "@25"}, "no generation of step 25")
	expect(t, exitOK, []string{"show", dir + "@best:loss"}, "step 30 of")
	expect(t, exitOK, []string{"show", dir + "@best:loss:max"}, "step 10 of")
	expect(t, exitOK, []string{"ls", dir + "@20.e1"}, "loss=80")
	expect(t, exitFailed, []string{"show", dir + "@best:acc"}, "no generation with the metric acc")
	expect(t, exitUsage, []string{"show", dir + "@x"}, "@STEP")
	expect(t, exitUsage, []string{"pin", dir}, "WHERE@STEP")
	expect(t, exitFailed, []string{"ls", filepath.Join(dir, "nothing", "there", "at", "all")}, "no checkpoints")

	expect(t, exitOK, []string{"pin", dir + "@10", "--as", "Ada", "--why", "paper"}, "pinned step 10")
	if rows := ckptRows(t, dir); len(rows[2].Pinned) != 1 || rows[2].Pinned[0] != "ada" {
		t.Errorf("%+v", rows[2])
	}
	expect(t, exitOK, []string{"prune", dir, "--keep", "1", "--dry-run"}, "would delete: "+ckptJob+" step 20", "kept: "+ckptJob+" step 10", "kept: "+ckptJob+" step 30")
	if rows := ckptRows(t, dir); len(rows) != 3 {
		t.Errorf("a dry run deletes: %+v", rows)
	}
	expect(t, exitOK, []string{"prune", dir, "--keep", "1"}, "deleted: "+ckptJob+" step 20")
	if rows := ckptRows(t, dir); len(rows) != 2 {
		t.Errorf("%+v", rows)
	}
	expect(t, exitOK, []string{"unpin", dir + "@10", "--as", "ada"}, "unpinned step 10")
	expect(t, exitFailed, []string{"unpin", dir + "@10", "--as", "ada"}, "has not pinned it")
	expect(t, exitOK, []string{"log", dir}, "pin 10  paper", "delete 20", "unpin 10")

	other := t.TempDir()
	expect(t, exitOK, []string{"cp", dir + "@10", other}, "copied step 10")
	expect(t, exitOK, []string{"cp", dir, other, "--all"}, "copied step 30")
	expect(t, exitOK, []string{"verify", other, "--all", "-q"}, "step 10", "step 30")
	expect(t, exitOK, []string{"diff", dir + "@10", other + "@10"}, "equal")
	expect(t, exitOK, []string{"log", other}, "cp 30  from file://"+dir)
	expect(t, exitOK, []string{"wait", dir, "--newer", "20"}, "30")
	expect(t, exitFailed, []string{"wait", dir, "--newer", "30", "--every", "1ms", "--timeout", "20ms"}, "no generation beyond step 30")
}

// TestCkptDamage: a damaged generation is named with file and chunk, is listed so, and is never preferred to a good one.
func TestCkptDamage(t *testing.T) {
	dir := t.TempDir()
	catalogtest.Write(t, dir, 10, 0)
	catalogtest.Write(t, dir, 20, 0)
	expect(t, exitOK, []string{"verify", dir + "@10"}, "good")
	catalogtest.Bend(t, dir, ckptJob, "*", "step-00000020.e1", "group-1.*")
	expect(t, exitFailed, []string{"verify", dir + "@20"}, "DAMAGED", "step-00000020.e1/group-1.w17.safetensors: chunk", "digest")
	rows := ckptRows(t, dir)
	if rows[0].State != catalog.Damaged || !strings.Contains(rows[0].Why, "group-1") || rows[1].State != catalog.Good {
		t.Errorf("%+v", rows)
	}
	expect(t, exitOK, []string{"prune", dir, "--keep", "1"}, "kept: "+ckptJob+" step 10")
	if rows := ckptRows(t, dir); rows[len(rows)-1].Step != 10 {
		t.Errorf("%+v", rows)
	}
	catalogtest.Bend(t, dir, ckptJob, "*", "frozen", "group-0-*.a.safetensors")
	expect(t, exitOK, []string{"verify", dir + "@10", "--repair"}, "its twin is whole")
	expect(t, exitOK, []string{"verify", dir + "@10", "--json"}, `"good": true`)
	catalogtest.Bend(t, dir, ckptJob, "*", "commits", "step-00000010.*")
	expect(t, exitFailed, []string{"show", dir + "@10"}, "step-00000010.e1.json: corrupt")
}

// heard calls do with each thing that is printed.
type heard struct {
	strings.Builder
	do func(text string)
}

func (h *heard) Write(b []byte) (int, error) {
	h.do(string(b))
	return h.Builder.Write(b)
}

// Beside a writer whose retention deletes generations all others are read, and what was deleted is no damage.
func TestCkptVerifyBesideRetention(t *testing.T) {
	for _, flags := range [][]string{{"--all"}, {"--all", "--no-record"}} {
		dir := t.TempDir()
		for _, step := range []replica.Step{10, 20, 30} {
			catalogtest.Write(t, dir, step, 0)
		}
		var out strings.Builder
		first := true
		errs := &heard{do: func(text string) {
			if first && strings.HasPrefix(text, "step 30:") {
				first = false
				catalogtest.Delete(t, dir, 20)
			}
		}}
		code := run(t.Context(), append([]string{"ckpt", "verify", dir}, flags...), stdio{strings.NewReader(""), &out, errs})
		for _, want := range []string{"step 30 of", "step 20 of 20261125T1716Z-ab010203: was deleted meanwhile", "step 10 of"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v: no %q in %s", flags, want, out.String())
			}
		}
		if code != exitOK || strings.Contains(out.String(), "DAMAGED") {
			t.Errorf("%v: code %d: %s%s", flags, code, out.String(), errs.String())
		}
	}
}

// A copy of all that takes longer than the newest one stays has the one that is the newest then.
func TestCkptCopyOfAllBesideRetention(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	catalogtest.Write(t, dir, 10, 0)
	catalogtest.Write(t, dir, 20, 0)
	first := true
	out := &heard{do: func(text string) {
		if first && strings.HasPrefix(text, "copied step 10") {
			first = false
			catalogtest.Write(t, dir, 30, 0)
			catalogtest.Delete(t, dir, 20)
		}
	}}
	var errs strings.Builder
	if code := run(t.Context(), []string{"ckpt", "cp", "--all", dir, other}, stdio{strings.NewReader(""), out, &errs}); code != exitOK {
		t.Errorf("code %d: %s", code, errs.String())
	}
	for _, want := range []string{"copied step 10 of", "not copied: step 20 of " + ckptJob + " was deleted meanwhile", "copied step 30 of"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out.String())
		}
	}
	if rows := ckptRows(t, other); len(rows) != 2 || rows[0].Step != 30 {
		t.Errorf("%+v", rows)
	}
}

// What a record calls damaged is read again, and counts once it was mended: by hand, or by a copy over it.
func TestCkptMended(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	catalogtest.Write(t, dir, 10, 0)
	catalogtest.Write(t, dir, 20, 0)
	expect(t, exitOK, []string{"cp", dir, other}, "copied step 20")
	file := []string{ckptJob, "*", "step-00000020.e1", "group-1.*"}
	catalogtest.Bend(t, append([]string{dir}, file...)...)
	expect(t, exitFailed, []string{"verify", dir}, "step 20 of", "DAMAGED")
	expect(t, exitFailed, []string{"verify", dir}, "step 20 of", "DAMAGED", "step 10 of", "good")
	catalogtest.Bend(t, append([]string{dir}, file...)...)
	expect(t, exitOK, []string{"verify", dir}, "step 20 of", "good")
	if rows := ckptRows(t, dir); rows[0].Step != 20 || rows[0].State != catalog.Good {
		t.Errorf("%+v", rows)
	}
	catalogtest.Bend(t, append([]string{other}, file...)...)
	expect(t, exitFailed, []string{"verify", other}, "DAMAGED")
	expect(t, exitOK, []string{"cp", dir, other}, "was damaged", "written anew", "copied step 20")
	if rows := ckptRows(t, other); len(rows) != 1 || rows[0].State != catalog.Good {
		t.Errorf("%+v", rows)
	}
	expect(t, exitOK, []string{"log", other}, "what was damaged here was written anew")
}

// What others wrote can't write over other lines of a terminal, or turn the order of its letters.
func TestCkptPrintsNothingUnprintable(t *testing.T) {
	const bad = "a\u202eb\u2066c\u200bd\ue000e\x1b[31mf\ninjected\th\u0085i\U000e0041"
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20} {
		catalogtest.WriteMade(t, dir, durabletest.Make(replica.Generation{Epoch: 1, Step: step}, 2), 0, func(c *format.Commit) {
			c.Notes, c.Provenance = map[string]string{"n" + bad: bad}, map[string]string{"p" + bad: bad}
			c.Metrics, c.Keep = map[string]format.Metric{"m" + bad: 1}, bad
			c.Lacks = []replica.Lacking{{Text: bad}}
		})
	}
	expect(t, exitOK, []string{"pin", dir + "@20", "--why", bad})
	st, err := place.OpenStore(t.Context(), dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	c := catalog.New(st, catalog.Options{Who: bad, Host: bad})
	found, _, err := c.Find(t.Context(), ckptJob, replica.JobID{})
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	if err := c.MarkRead(t.Context(), found[1], errors.New(bad)); err != nil {
		t.Fatal(err)
	}
	if err := c.Log(t.Context(), ckptJob, format.Log{Verb: bad, Run: found[0].Run.Run, Why: bad}); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"ls", dir}, {"show", dir, "--tensors"}, {"log", dir}, {"prune", dir, "--keep", "1", "--dry-run"}, {"ls", dir, "--json"}, {"show", dir, "--json"}, {"log", dir, "--json"}, {"verify", dir, "--all"}} {
		code, out, errout := try(t, append([]string{"ckpt"}, args...)...)
		for _, text := range strings.Split(out+errout, "\n") {
			if i := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 || strings.HasPrefix(text, "injected") {
				t.Errorf("%v: prints %q", args, text)
			}
		}
		if code != exitOK || args[0] != "verify" && !strings.Contains(out, "a") {
			t.Errorf("%v: code %d: %s%s", args, code, out, errout)
		}
	}
	if rows := ckptRows(t, dir); rows[0].Keep != bad || rows[0].Metrics["m"+bad] != 1 {
		t.Errorf("JSON says %+v", rows[0])
	}
}

// TestCkptSeveralRuns: the run that began last comes first, and each is named.
func TestCkptSeveralRuns(t *testing.T) {
	dir := t.TempDir()
	catalogtest.Write(t, dir, 50, 0)
	catalogtest.Write(t, dir, 10, 1)
	rows := ckptRows(t, dir)
	if len(rows) != 2 || rows[0].Step != 10 || rows[1].Step != 50 {
		t.Errorf("%+v", rows)
	}
	expect(t, exitOK, []string{"show", dir}, "step 10 of epoch 1")
	expect(t, exitOK, []string{"show", filepath.Join(dir, ckptJob, rows[1].Run)}, "step 50 of epoch 1")
	expect(t, exitOK, []string{"prune", dir, "--keep-runs", "1"}, "kept: "+ckptJob+" step 50")
}

// TestCkptOnBuckets: the same on buckets, whose servers are told by the environment.
func TestCkptOnBuckets(t *testing.T) {
	for name, tc := range map[string]struct {
		start func(testing.TB) *storetest.Server
		env   func(url string) map[string]string
	}{
		"s3": {storetest.Start, func(url string) map[string]string {
			return map[string]string{"AWS_ENDPOINT_URL_S3": url, "AWS_ACCESS_KEY_ID": storetest.Access, "AWS_SECRET_ACCESS_KEY": storetest.Secret, "AWS_REGION": "us-east-1"}
		}},
		"gs": {storetest.StartGCS, func(url string) map[string]string { return map[string]string{"STORAGE_EMULATOR_HOST": url} }},
		"az": {storetest.StartAzure, func(url string) map[string]string {
			return map[string]string{"AZURE_STORAGE_CONNECTION_STRING": "AccountName=" + storetest.Access + ";AccountKey=" + storetest.AzureKey + ";BlobEndpoint=" + url + "/" + storetest.Access + ";"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := tc.start(t)
			for k, v := range tc.env(srv.URL) {
				t.Setenv(k, v)
			}
			ckptOnBucket(t, name+"://"+srv.Bucket)
		})
	}
}

func ckptOnBucket(t *testing.T, bucket string) {
	t.Helper()
	root := bucket + "/ckpt"
	for _, step := range []replica.Step{10, 20, 30} {
		catalogtest.Write(t, root, step, 0)
	}
	for _, where := range []string{root, root + "/" + ckptJob} {
		if rows := ckptRows(t, where); len(rows) != 3 || rows[0].Step != 30 || rows[0].Metrics["loss"] != 70 {
			t.Errorf("%s: %+v", where, rows)
		}
	}
	expect(t, exitOK, []string{"verify", root, "--all", "-q"}, "step 10", "step 20", "step 30")
	expect(t, exitOK, []string{"pin", root + "@10", "--as", "ada"}, "pinned step 10")
	expect(t, exitOK, []string{"prune", root, "--keep", "1", "--grace", "1ns", "--nobody-writes"}, "deleted: "+ckptJob+" step 20")
	expect(t, exitOK, []string{"show", root + "/" + ckptJob + "@10", "--tensors"}, "weight", "ada")
	dir := t.TempDir()
	expect(t, exitOK, []string{"cp", root, dir}, "copied step 30")
	expect(t, exitOK, []string{"diff", root, dir}, "equal")
	expect(t, exitOK, []string{"verify", dir}, "good")
	expect(t, exitFailed, []string{"ls", bucket + "/other"}, "no checkpoints")
}

// TestCkptCopiedByOthers: a run's directory that somebody copied is read where it lies, without the root's mark.
func TestCkptCopiedByOthers(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	catalogtest.Write(t, dir, 10, 0)
	catalogtest.Write(t, dir, 20, 0)
	run := ckptRows(t, dir)[0].Run
	if err := os.CopyFS(filepath.Join(other, ckptJob, run), os.DirFS(filepath.Join(dir, ckptJob, run))); err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{other, filepath.Join(other, ckptJob), filepath.Join(other, ckptJob, run)} {
		if rows := ckptRows(t, where); len(rows) != 2 || rows[0].Step != 20 {
			t.Errorf("%s: %+v", where, rows)
		}
	}
	expect(t, exitOK, []string{"verify", other, "--all", "-q"}, "step 10", "step 20")
	expect(t, exitOK, []string{"diff", dir + "@10", other + "@10"}, "equal")
	expect(t, exitFailed, []string{"ls", t.TempDir()}, "no checkpoints")
}

// TestCkptSeenDamage: a file that is gone is recorded by verify, and prune looks before it deletes what is good.
func TestCkptSeenDamage(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20} {
		catalogtest.Write(t, dir, step, 0)
	}
	expect(t, exitOK, []string{"verify", dir, "--all", "-q"}, "step 10", "step 20")
	lose := func(step string) {
		t.Helper()
		lost, err := filepath.Glob(filepath.Join(dir, ckptJob, "*", step, "group-0.*.safetensors"))
		if err != nil || len(lost) != 1 {
			t.Fatal(lost, err)
		}
		if err := os.Remove(lost[0]); err != nil {
			t.Fatal(err)
		}
	}
	lose("step-00000020.e1")
	expect(t, exitOK, []string{"prune", dir, "--keep", "1", "--dry-run"}, "kept: "+ckptJob+" step 10")
	if rows := ckptRows(t, dir); rows[0].State != catalog.Good {
		t.Errorf("a dry run has marked %+v", rows[0])
	}
	expect(t, exitOK, []string{"prune", dir, "--keep", "1"}, "kept: "+ckptJob+" step 10")
	if rows := ckptRows(t, dir); len(rows) != 2 || rows[0].State != catalog.Damaged || rows[1].State != catalog.Good {
		t.Errorf("%+v", rows)
	}
	lose("step-00000010.e1")
	expect(t, exitFailed, []string{"verify", dir + "@10", "-q"}, "is missing")
	if rows := ckptRows(t, dir); rows[1].State != catalog.Damaged {
		t.Errorf("%+v", rows)
	}
}

// TestCkptGraceOfAWrite: a grace that a live writer's objects may be older than is refused.
func TestCkptGraceOfAWrite(t *testing.T) {
	dir := t.TempDir()
	catalogtest.Write(t, dir, 10, 0)
	for _, grace := range []string{"-1h", "0s", "59m"} {
		for _, more := range [][]string{nil, {"--dry-run"}} {
			expect(t, exitUsage, append([]string{"prune", dir, "--grace", grace}, more...), "--grace "+grace[:2], "want 1h0m0s or more")
		}
	}
	expect(t, exitUsage, []string{"prune", dir, "--grace", "-1s", "--nobody-writes"}, "--grace -1s")
	expect(t, exitOK, []string{"prune", dir, "--grace", "1h"}, "kept: "+ckptJob+" step 10")
}
