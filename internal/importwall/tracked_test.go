package importwall

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// largestTracked is the most that a tracked file may have, in bytes: the text of examples/textlm has 554 KiB.
const largestTracked = 600 << 10

// looked is how much of a file's beginning is looked at: about what git itself looks at to tell whether a file is text.
const looked = 8 << 10

// products are beginnings of files that a build or a packer makes.
var products = map[string]string{
	"\x7fELF": "an ELF file", "!<arch>\n": "an archive of ar", "!<thin>\n": "an archive of ar", "PK\x03\x04": "a zip archive", "PK\x05\x06": "a zip archive",
	"\x1f\x8b": "a gzip archive", "\x28\xb5\x2f\xfd": "a zstd archive",
}

// untrackable says why a file must not be tracked; empty: it may be. A history keeps for good what was in it once.
func untrackable(path string, size int64, begins []byte) string {
	for magic, what := range products {
		if bytes.HasPrefix(begins, []byte(magic)) {
			return "is " + what + ", and what made it is to make it again"
		}
	}
	if size > largestTracked {
		return fmt.Sprintf("has %d bytes, want at most %d", size, largestTracked)
	}
	if bytes.IndexByte(begins, 0) >= 0 && !strings.Contains("/"+path, "/testdata/") && !strings.HasPrefix(path, "docs/pictures/") {
		return "is binary, which only files below a testdata folder or docs/pictures/ are"
	}
	return ""
}

// TestTrackedFiles: git has no product of a build, nothing large, and nothing binary but where it belongs.
func TestTrackedFiles(t *testing.T) {
	root := filepath.Join("..", "..")
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skipf("this is no checkout, so nothing is tracked: %v", err)
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skipf("git says which files are tracked: %v", err)
	}
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	seen := 0
	for path := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		size, begins, err := beginning(filepath.Join(root, path))
		if errors.Is(err, fs.ErrNotExist) { // it is about to go
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		seen++
		if why := untrackable(path, size, begins); why != "" {
			t.Errorf("%s %s", path, why)
		}
	}
	if seen < 1000 {
		t.Errorf("%d files were looked at", seen)
	}
}

// beginning reads the first bytes of a file.
func beginning(path string) (size int64, begins []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, nil, err
	}
	begins, err = io.ReadAll(io.LimitReader(f, looked))
	return info.Size(), begins, err
}

// TestUntrackableFilesAreSeen shows that the check can fail.
func TestUntrackableFilesAreSeen(t *testing.T) {
	for _, tc := range []struct {
		path   string
		size   int64
		begins string
		want   string
	}{
		{"lock/claim.go", 9, "package x", ""}, {"README.md", largestTracked, "#", ""}, {"rng/testdata/full.bin", 3, "a\x00b", ""}, {"docs/pictures/way.png", 3, "a\x00b", ""},
		{"cmd/replicad/replicad", 4, "\x7fELF", "an ELF file"}, {"internal/wire/testdata/a.bin", 4, "\x7fELF", "an ELF file"}, {"lib/x.a", 8, "!<arch>\n", "archive of ar"},
		{"docs/pictures/all.zip", 4, "PK\x03\x04", "zip"}, {"x.tar.gz", 2, "\x1f\x8b", "gzip"}, {"x.zst", 4, "\x28\xb5\x2f\xfd", "zstd"},
		{"rng/testdata/full.bin", largestTracked + 1, "", "614401 bytes"}, {"bench/core", 3, "a\x00b", "is binary"}, {"docs/testdata.bin", 3, "a\x00b", "is binary"},
	} {
		if got := untrackable(tc.path, tc.size, []byte(tc.begins)); (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.path, got, tc.want)
		}
	}
}
