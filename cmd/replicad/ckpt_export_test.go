package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/replica"
)

// What is exported and imported again is a generation as any other: the commands work on it.
func TestCkptExportAndImport(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	catalogtest.WriteMade(t, dir, durabletest.Make(replica.Generation{Epoch: 1, Step: 10}, 2, durabletest.Trained()...), 0)
	out := filepath.Join(t.TempDir(), "out")
	expect(t, exitOK, []string{"export", dir + "@10", out, "--to", "safetensors", "--as", "ada"}, "exported step 10 of "+ckptJob+" as safetensors", "note: tensors that each rank has for itself, as cursor")
	expect(t, exitOK, []string{"log", dir}, "export 10  as safetensors to "+out, "ada")
	state := filepath.Join(out, "state.safetensors")
	expect(t, exitOK, []string{"import", state, "--to", other, "--job", "new", "--step", "30"}, "imported "+state+" (safetensors)", "as step 30 of job new")
	expect(t, exitOK, []string{"ls", other}, "new", "30")
	expect(t, exitOK, []string{"show", other, "--tensors"}, "imported = safetensors "+state, "weight", "[10 7]", "optim.weight.exp_avg")
	if text := expect(t, exitOK, []string{"show", other, "--tensors"}, "[]"); strings.Contains(text, " ? ") {
		t.Errorf("a shape is unknown in\n%s", text)
	}
	expect(t, exitOK, []string{"verify", other}, "step 30", "good")
	expect(t, exitOK, []string{"log", other}, "import 30  from safetensors "+state)
	third := t.TempDir()
	expect(t, exitOK, []string{"cp", other, third}, "copied step 30")
	expect(t, exitOK, []string{"diff", other, third}, "equal")
	expect(t, exitFailed, []string{"diff", dir, other}, "weight: another shape")
	expect(t, exitOK, []string{"prune", third, "--strip-optimizer", "--idle", "0s"}, "stripped")
	expect(t, exitFailed, []string{"import", state, "--to", other, "--job", "new"}, "give it another name with --job")

	for _, to := range []string{"hf", "dcp", "pt"} {
		out := filepath.Join(t.TempDir(), "out")
		text := expect(t, exitOK, []string{"export", third, out, "--to", to, "--json", "--only", "model"})
		var said struct {
			Job     string
			Format  string
			Tensors int
			Step    uint64
		}
		if err := json.Unmarshal([]byte(text), &said); err != nil || said.Job != "new" || said.Format != to || said.Tensors == 0 || said.Step != 30 {
			t.Errorf("%s: %+v, %v", text, said, err)
		}
		if to == "pt" {
			out = filepath.Join(out, "state.pt")
		}
		text = expect(t, exitOK, []string{"import", out, "--to", t.TempDir(), "--job", "new", "--json", "--map", "weight=w"})
		if !strings.Contains(text, `"format": "`+to) {
			t.Error(text)
		}
	}
}

func TestCkptExportRefuses(t *testing.T) {
	dir := t.TempDir()
	catalogtest.Write(t, dir, 10, 0)
	catalogtest.Write(t, dir, 20, 0)
	catalogtest.Bend(t, dir, ckptJob, "*", "step-00000020.e1", "group-0.*")
	out := filepath.Join(t.TempDir(), "out")
	expect(t, exitFailed, []string{"export", dir + "@20", out, "--to", "pt"}, "step-00000020.e1/group-0.w17.safetensors: chunk", "digest")
	expect(t, exitFailed, []string{"export", dir + "@15", out, "--to", "pt"}, "no generation of step 15")
	expect(t, exitUsage, []string{"export", dir, out, "--to", "onnx"}, "want one of hf, dcp, pt, safetensors")
	expect(t, exitUsage, []string{"export", dir, out}, "to")
	expect(t, exitUsage, []string{"export", dir, out, "--to", "pt", "--map", "x"}, "FROM=TO")
	expect(t, exitFailed, []string{"export", dir + "@10", dir, "--to", "pt"}, "not empty")
	expect(t, exitUsage, []string{"import", dir, "--to", dir, "--job", "../x"}, "--job")
	expect(t, exitUsage, []string{"import", dir, "--to", dir}, "--job")
	expect(t, exitUsage, []string{"import", dir, "--job", "new"}, "--to ROOT")
	expect(t, exitFailed, []string{"import", dir, "--to", dir, "--job", "new"}, "nothing in it is known")
	expect(t, exitOK, []string{"ls", dir}, "20")
	if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
