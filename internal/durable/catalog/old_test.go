package catalog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/durable/directory"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// writeOld does what today's daemons do.
func writeOld(t *testing.T, dir string, g replica.Generation) {
	t.Helper()
	s, err := checkpoint.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	made := durabletest.Make(g, 2)
	m := checkpoint.Marker{JobName: durabletest.JobName, Job: durabletest.Job, Generation: g, Position: replica.Position(g), Layout: made.Layout, Lineage: replica.Lineage{{Epoch: 1}}, Owner: 7}
	for i, p := range append(made.Groups, made.Private...) {
		var along *checkpoint.Frozen
		if i < len(made.Groups) {
			f := made.Frozen[i]
			along = &checkpoint.Frozen{Manifest: f.Manifest, Regions: f.Regions, Read: f.Read}
		}
		info, err := s.WriteShard(t.Context(), durabletest.JobName, p.Manifest, p.Regions, along, p.Read)
		if err != nil {
			t.Fatal(err)
		}
		m.Shards = append(m.Shards, info)
	}
	if err := s.WriteMarker(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// TestOldIsCopiedAgain: a copy that broke off before its COMMIT is begun anew beside what it left, and one that is whole is left as it is, in a
// directory too, which puts nothing over what is there.
func TestOldIsCopiedAgain(t *testing.T) {
	dir := t.TempDir()
	writeOld(t, dir, gen(2))
	o, err := OpenOld(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	found, _, err := o.Find(t.Context(), durabletest.JobName, replica.JobID{})
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	st, err := directory.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	c := over(st, 1)
	for _, breaksOff := range []bool{true, false, false} {
		if _, err := o.Copy(t.Context(), found[0], c); err != nil {
			t.Fatal(err)
		}
		copied, _ := find(t, c)
		if len(copied) != 1 {
			t.Fatalf("%d copies", len(copied))
		}
		checkWhole(t, c, copied[0], 2)
		if want := map[bool]uint64{true: 1, false: 2}[breaksOff]; copied[0].Write != want {
			t.Errorf("the copy has write %d, want %d", copied[0].Write, want)
		}
		if breaksOff {
			if err := st.Delete(t.Context(), copied[0].Run.Key(format.Name{Kind: format.CommitKind, Generation: gen(2)})); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestOld: what today's daemons wrote is listed, verified, compared and copied into the present layout, to the byte.
func TestOld(t *testing.T) {
	dir := t.TempDir()
	writeOld(t, dir, gen(2))
	writeOld(t, dir, gen(4))
	o, err := OpenOld(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if jobs, err := o.Jobs(t.Context()); err != nil || len(jobs) != 1 || jobs[0] != durabletest.JobName {
		t.Error(jobs, err)
	}
	list, err := o.List(t.Context(), durabletest.JobName)
	if err != nil || len(list) != 2 || list[0].Generation != gen(4) || list[0].Row.Bytes == 0 || !list[0].Old {
		t.Errorf("%+v, %v", list, err)
	}
	found, skipped, err := o.Find(t.Context(), durabletest.JobName, replica.JobID{})
	if err != nil || len(found) != 2 || len(skipped) != 0 || !found[0].Old() {
		t.Fatal(found, skipped, err)
	}
	m := memory.New()
	c := over(m, 4)
	for _, f := range found {
		if _, err := o.Verify(t.Context(), f, nil); err != nil {
			t.Error(err)
		}
		for range 2 { // once more is no error
			if _, err := o.Copy(t.Context(), f, c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if list, err = o.List(t.Context(), durabletest.JobName); err != nil || list[0].State != Good || list[0].Read.IsZero() {
		t.Errorf("what was verified is listed as %+v, %v", list, err)
	}
	copied, _ := find(t, c)
	if len(copied) != 2 {
		t.Fatalf("%d copies", len(copied))
	}
	for i, f := range copied {
		checkWhole(t, c, f, 2)
		if f.Owner != 7 || f.Position != found[i].Position {
			t.Errorf("%+v", f.Commit)
		}
		if d, err := Diff(t.Context(), o, found[i], c, f); err != nil || len(d) != 0 {
			t.Errorf("%v, %v", d, err)
		}
	}
	for _, x := range found[0].Index.Tensors {
		if x.Name == "weight" && (len(x.Pieces) != 2 || len(x.Shape) != 2 || x.Shape[0] != 10) {
			t.Errorf("%+v", x)
		}
	}
	file := filepath.Join(dir, durabletest.JobName, durabletest.Job.String(), "1-4", "group-0.safetensors")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if faults, err := o.Verify(t.Context(), found[0], nil); err == nil || len(faults) != 1 || !strings.Contains(faults[0].What, "group-0") {
		t.Errorf("%+v, %v", faults, err)
	}
	if list, err = o.List(t.Context(), durabletest.JobName); err != nil || len(list) != 2 || list[1].State != Damaged || list[1].Row.Bytes == 0 || list[1].Why == "" {
		t.Errorf("what failed a read is listed as %+v, %v", list, err)
	}
	if _, err := o.Copy(t.Context(), found[0], over(memory.New(), 1)); err == nil {
		t.Error("a damaged generation was copied")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	list, err = o.List(t.Context(), durabletest.JobName)
	if err != nil || len(list) != 2 || list[1].State != Damaged || list[1].Why == "" {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestOldIsSilent: a daemon that stops does not wait for a former directory whose file system does not answer. Prune lists it too.
func TestOldIsSilent(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	dir := t.TempDir()
	o := OldLater(ctx, dir)
	fixture.Mute(t, dir)
	stop()
	if _, err := o.List(t.Context(), "job"); !errors.Is(err, checkpoint.ErrSilent) {
		t.Errorf("list: %v", err)
	}
	if _, err := o.Jobs(t.Context()); !errors.Is(err, checkpoint.ErrSilent) {
		t.Errorf("jobs: %v", err)
	}
}
