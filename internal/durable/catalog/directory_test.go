package catalog

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/directory"
	"github.com/replicad/replicad/internal/durable/durabletest"
)

// TestOverADirectory: the whole life of generations on a file system, and nothing left that no commit names.
func TestOverADirectory(t *testing.T) {
	dir := t.TempDir()
	st, err := directory.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	c := New(st, Options{Who: "ada", Host: "h"})
	mustWrite(t, c, gen(2), 2)
	mustWrite(t, c, gen(4), 2)
	found, _ := finds(t, c)
	for _, f := range found {
		checkWhole(t, c, f, 2)
		if err := c.MarkRead(t.Context(), f, nil); err != nil {
			t.Error(err)
		}
	}
	if err := c.Delete(t.Context(), found[1].Run, found[1].Generation, "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sweep(t.Context(), found[0].Run, time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), durabletest.JobName)
	if err != nil || len(list) != 1 || list[0].State != find.Good || list[0].Row.Bytes == 0 {
		t.Errorf("%+v, %v", list, err)
	}
	checkWhole(t, c, find0(t, c)[0], 2)
	err = filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if strings.Contains(p, "step-00000002") {
			t.Errorf("left over: %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
