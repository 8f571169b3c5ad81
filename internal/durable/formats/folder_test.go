package formats_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/durable/formats"
)

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	for path, text := range map[string]string{outside: "secret", filepath.Join(dir, "a"): "abc"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{os.Symlink(outside, filepath.Join(dir, "out")), os.Symlink("a", filepath.Join(dir, "in")), os.Mkdir(filepath.Join(dir, "sub"), 0o700), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := formats.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, says := range map[string]string{"out": "leads out of the folder; copy", "pipe": "no regular file", "sub": "no regular file", "../x": "leads out", "/etc/passwd": "leads out", "a\n": "control", "b": "no such file"} {
		if _, err := f.Open(name); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"a", "in"} {
		if b, err := f.Small(name, 3); err != nil || string(b) != "abc" {
			t.Errorf("%q: %q, %v", name, b, err)
		}
	}
	if _, err := f.Small("a", 2); err == nil || !strings.Contains(err.Error(), "at most 2") {
		t.Error(err)
	}
	if err := f.ReadAt("a", make([]byte, 2), 2); err == nil || !strings.Contains(err.Error(), "it is cut") {
		t.Error(err)
	}
	for i := range 200 { // more than are open at once
		name := fmt.Sprint(i)
		if err := formats.WriteFile(dir, name, func(w io.Writer) error { _, err := io.WriteString(w, name); return err }); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for i := range 200 {
			if b, err := f.Small(fmt.Sprint(i), 3); err != nil || string(b) != fmt.Sprint(i) {
				t.Fatal(i, b, err)
			}
		}
	}
	if names, err := f.Names(); err != nil || len(names) != 205 {
		t.Error(len(names), err)
	}
	if err := formats.WriteFile(dir, "a", func(io.Writer) error { return nil }); err == nil {
		t.Error("a file that was there was written over")
	}
}
