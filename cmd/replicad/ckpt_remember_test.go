package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalogtest"
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
				catalogtest.Write(t, dir, step, 0)
			}
			catalogtest.Bend(t, dir, ckptJob, "*", "step-00000030.e1", "group-0.*")
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
		catalogtest.Write(t, dir, step, 0)
	}
	catalogtest.Bend(t, dir, ckptJob, "*", "step-00000020.e1", "group-0.*")
	expect(t, exitFailed, []string{"export", dir + "@20", filepath.Join(t.TempDir(), "e"), "--to", "pt"}, "is damaged, and counts for nothing", "digest")
	if rows := ckptRows(t, dir); rows[0].State != catalog.Damaged {
		t.Errorf("%+v", rows)
	}
	catalogtest.Bend(t, dir, ckptJob, "*", "step-00000010.e1", "group-0.*")
	expect(t, exitFailed, []string{"export", dir, filepath.Join(t.TempDir(), "e"), "--to", "pt"}, "step 10 of", "no generation that is whole")
}
