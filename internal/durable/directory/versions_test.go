package directory

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

func changed(t *testing.T, s *Store, v store.Version, n int) store.Version {
	t.Helper()
	for i := range n {
		var err error
		if v, err = s.PutUnchanged(t.Context(), "d/k", []byte(strconv.Itoa(i)), v); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// The versions of an object do not grow without end, and the file under its key is the newest for people and plain copies.
func TestVersionsAreBounded(t *testing.T) {
	dir := storetest.Scratch(t)
	s := opened(t, dir, newFaults())
	v, err := s.PutNew(t.Context(), "d/k", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	changed(t, s, v, keepVersions+50)
	if left, _ := filepath.Glob(dir + "/d/~v-k/*"); len(left) < keepVersions || len(left) > keepVersions+2 {
		t.Errorf("%d versions are left, want about %d", len(left), keepVersions)
	}
	if b, err := os.ReadFile(dir + "/d/k"); err != nil || string(b) != strconv.Itoa(keepVersions+49) {
		t.Errorf("the file reads %q, %v", b, err)
	}
	if left, _ := filepath.Glob(dir + "/d/~t*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := s.Delete(t.Context(), "d/k"); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("a deletion leaves %v", left)
	}
}

// A writer that slept while its version, and the next, were removed must not believe that it has put the newest.
func TestWriterThatSlept(t *testing.T) {
	s := opened(t, storetest.Scratch(t), newFaults())
	v, err := s.PutNew(t.Context(), "d/k", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	last := changed(t, s, v, keepVersions+1)
	if err := s.tree.publish(t.Context(), "d/k", 1); err != nil { // one that slept less: nobody has removed what it linked
		t.Errorf("version 1 behind %d others: %v", keepVersions, err)
	}
	last = changed(t, s, last, 2)
	err = s.tree.publish(t.Context(), "d/k", 1) // it has just linked version 1, which was removed before
	if !errors.Is(err, store.ErrDoubtful) {
		t.Errorf("version 1 behind %d others: %v", keepVersions+2, err)
	}
	if b, now, err := s.Get(t.Context(), "d/k", 10); err != nil || now != last {
		t.Errorf("%q, version %s, %v, want %s", b, now, err, last)
	}
}

// A crash between the link of a version and the replacement of the key's file loses nothing.
func TestCrashBeforePublication(t *testing.T) {
	dir := storetest.Scratch(t)
	s := opened(t, dir, newFaults())
	v, err := s.PutNew(t.Context(), "d/k", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	changed(t, s, v, 3)
	if err := os.WriteFile(dir+"/d/~v-k/0000000004", []byte("four"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, now, err := s.Get(t.Context(), "d/k", 10)
	if err != nil || string(b) != "four" {
		t.Fatalf("%q, %v", b, err)
	}
	if i, err := s.Stat(t.Context(), "d/k"); err != nil || i.Size != 4 {
		t.Errorf("%+v, %v", i, err)
	}
	if err := s.List(t.Context(), "", "", func(i store.Info) error {
		if i.Size != 4 {
			t.Errorf("%+v", i)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	changed(t, s, now, 1)
}

const processEnv = "REPLICAD_TEST_INCREMENTS"

// TestProcesses: increments of several processes on one directory, none lost.
func TestProcesses(t *testing.T) {
	if dir := os.Getenv(processEnv); dir != "" {
		s := opened(t, dir, newFaults())
		for range 25 {
			if err := storetest.Increment(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	dir := storetest.Scratch(t)
	s := opened(t, dir, newFaults())
	if _, err := s.PutNew(t.Context(), "counter", []byte("0")); err != nil {
		t.Fatal(err)
	}
	var all []*exec.Cmd
	var outs [4]bytes.Buffer
	for i := range outs {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcesses$")
		cmd.Env = append(os.Environ(), processEnv+"="+dir)
		cmd.Stdout, cmd.Stderr = &outs[i], &outs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	for i, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, outs[i].String())
		}
	}
	if b, _, err := s.Get(t.Context(), "counter", 10); err != nil || string(b) != "100" {
		t.Errorf("counted to %s, %v, want 100", b, err)
	}
}

// FuzzTempName: a name that is not a key's is none of ours but in the one way that it is written.
func FuzzTempName(f *testing.F) {
	for _, name := range []string{tempName("k", newID(putting)), tempName("k", newID(uploading)), "~v-k", "~t-k", "k", "~tAAAAAAAAAAAAAAAA-", "~tAAAAAAAAAAAAAAAA-~"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		base, id, ok := parseTemp(name)
		if ok && (tempName(base, id) != name && !strings.ContainsAny(base, "/.") || !validID(id)) {
			t.Fatalf("%q: %q %q", name, base, id)
		}
		if ok && store.CheckKey(name) == nil {
			t.Fatalf("%q is a key and a temporary name", name)
		}
	})
}

// A list takes the types of entries from the file system's answer and looks at none: there may be hundreds, each a request to a server.
func TestListLooksAtNoEntry(t *testing.T) {
	dir := storetest.Scratch(t)
	s := opened(t, dir, newFaults())
	if _, err := s.PutNew(t.Context(), "d/k", []byte("x")); err != nil {
		t.Fatal(err)
	}
	seen := 0
	if err := s.tree.each(t.Context(), "d", func(e fs.DirEntry) {
		seen++
		if err := os.Remove(filepath.Join(dir, "d", e.Name())); err != nil {
			t.Fatal(err)
		}
		if info, err := e.Info(); !errors.Is(err, fs.ErrNotExist) || !e.Type().IsRegular() {
			t.Errorf("%s is of type %v, and was looked at before: %v, %v", e.Name(), e.Type(), info, err)
		}
	}); err != nil || seen != 1 {
		t.Errorf("%d entries, %v", seen, err)
	}
}

// Only names as versions have them are versions.
func TestVersionNames(t *testing.T) {
	for name, want := range map[string]int{"0000000001": 1, "0000000256": 256, "9999999999": 9999999999, "10000000000": 10000000000,
		"0000000000": 0, "1": 0, "00000000001": 0, "+000000001": 0, "-000000001": 0, "000000001x": 0, "0x00000001": 0, "0_00000001": 0, "": 0, "99999999999999999999": 0} {
		n, ok := numberOf(name)
		if ok != (want > 0) || ok && (n != want || numbered("", n) != name) {
			t.Errorf("%q is version %d (%v), want %d", name, n, ok, want)
		}
	}
}
