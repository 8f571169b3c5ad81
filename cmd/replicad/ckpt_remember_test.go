package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// TestCkptRemembersWhatItMeets: a command that meets a bad byte in the newest generation, which nobody has read, marks it as verify does, names it, and takes the
// next one that is whole.
func TestCkptRemembersWhatItMeets(t *testing.T) {
	for name, c := range map[string]struct {
		args []string // behind the root: OUT is an empty folder
		code int
		want string
	}{
		"export":   {[]string{"export", "ROOT", "OUT/e", "--to", "pt"}, exitOK, "exported step 20"},
		"cp":       {[]string{"cp", "ROOT", "OUT"}, exitOK, "copied step 20"},
		"cp --all": {[]string{"cp", "ROOT", "OUT", "--all"}, exitOK, "copied step 10"},
		"diff":     {[]string{"diff", "ROOT@last", "ROOT@20"}, exitOK, "equal: "},
		"decrypt":  {[]string{"cp", "ROOT", "OUT", "--decrypt"}, exitOK, "copied step 20"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, out := t.TempDir(), t.TempDir()
			for _, step := range []replica.Step{10, 20, 30} {
				writeGeneration(t, dir, step, 0)
			}
			bend(t, dir, ckptJob, "*", "step-00000030.e1", "group-0.*")
			args := make([]string, len(c.args))
			for i, a := range c.args {
				args[i] = strings.NewReplacer("ROOT", dir, "OUT", out).Replace(a)
			}
			expect(t, c.code, args, c.want, "step 30 of "+ckptJob+" is damaged, and counts for nothing: group-0.")
			if rows := ckptRows(t, dir); rows[0].State != catalog.Damaged || rows[1].State == catalog.Damaged {
				t.Errorf("%+v", rows)
			}
			if name == "cp --all" {
				rows := ckptRows(t, out)
				if len(rows) != 2 || rows[0].State != catalog.Good || rows[1].State != catalog.Good {
					t.Errorf("the copy has %+v", rows)
				}
			}
		})
	}
}

// TestCkptNamesOneThatIsDamaged: whoever names a generation that turns out to be damaged gets no other one, and the mark all the same.
func TestCkptNamesOneThatIsDamaged(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20} {
		writeGeneration(t, dir, step, 0)
	}
	bend(t, dir, ckptJob, "*", "step-00000020.e1", "group-0.*")
	expect(t, exitFailed, []string{"export", dir + "@20", filepath.Join(t.TempDir(), "e"), "--to", "pt"}, "is damaged, and counts for nothing", "digest")
	if rows := ckptRows(t, dir); rows[0].State != catalog.Damaged {
		t.Errorf("%+v", rows)
	}
	bend(t, dir, ckptJob, "*", "step-00000010.e1", "group-0.*")
	expect(t, exitFailed, []string{"export", dir, filepath.Join(t.TempDir(), "e"), "--to", "pt"}, "step 10 of", "no generation that is whole")
}

// TestCkptGoesOnWhereNothingIsTaken: a store that takes no record has the next one read all the same, and a target that is damaged is no fault of the source.
func TestCkptGoesOnWhereNothingIsTaken(t *testing.T) {
	m := memory.New()
	cat := catalog.New(m, catalog.Options{Who: "daemon"})
	for _, step := range []replica.Step{10, 20} {
		writeInto(t, cat, durabletest.Make(replica.Generation{Epoch: 1, Step: step}, 2), 0)
	}
	for _, key := range m.Keys() {
		if strings.Contains(key, "step-00000020.e1/group-0") {
			m.Bend(key, func(b []byte) []byte { b[len(b)-20] ^= 1; return b })
		}
	}
	m.Before = func(c memory.Call) error {
		if strings.HasPrefix(c.Verb, "Put") || c.Verb == "Upload" {
			return fmt.Errorf("%w: read alone is allowed", store.ErrRefused)
		}
		return nil
	}
	var said strings.Builder
	c := ckpt{stdio{out: io.Discard, err: &said}, new(keyring)}
	w := &where{cat: catalog.New(m, catalog.Options{Who: "me"}), job: ckptJob, close: func() {}}
	var steps []replica.Step
	err := c.read(t.Context(), w, func(f catalog.Found) error {
		steps = append(steps, f.Generation.Step)
		sh, err := w.cat.OpenShard(t.Context(), f, replica.OfGroup(0))
		if err != nil {
			return err
		}
		defer sh.Close()
		_, err = catalog.Regions(sh, func(replica.Region) bool { return true })
		return err
	})
	if err != nil || fmt.Sprint(steps) != "[20 10]" || !strings.Contains(said.String(), "not recorded: ") {
		t.Errorf("%v, reads %v, says %q", err, steps, said.String())
	}
	bad := fmt.Errorf("the target: %w", store.ErrCorrupt)
	if err := c.read(t.Context(), w, func(catalog.Found) error { return bad }); !errors.Is(err, bad) {
		t.Error(err)
	}
}
