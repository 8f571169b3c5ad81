package owner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpen(t *testing.T) {
	base := t.TempDir()
	in := func(name string) string { return filepath.Join(base, name) }
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.Mkdir(in("own"), 0o700))
	do(os.Mkdir(in("open"), 0o700))
	do(os.Chmod(in("open"), 0o770))
	do(os.Symlink(in("own"), in("link")))
	do(os.Symlink(in("nowhere"), in("dangling")))
	do(os.WriteFile(in("file"), nil, 0o600))
	wants := map[string]string{"open": "chmod go-w", "link": "is a link", "dangling": "is a link", "file": "is no folder"}
	if os.Geteuid() == 0 { // only root gives a folder away
		do(os.Mkdir(in("theirs"), 0o755))
		do(os.Chown(in("theirs"), 1002, -1))
		wants["theirs"] = "belongs to user 1002"
	}
	for name, want := range wants {
		if root, err := Open(in(name), false); root != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), in(name)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if _, err := Open(in("nothing"), false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
	root, err := Open(in("own"), false)
	do(err)
	defer root.Close()
	do(os.Rename(in("own"), in("moved"))) // somebody puts another folder in its place
	do(os.Mkdir(in("own"), 0o700))
	f, err := root.OpenFile("x", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	do(err)
	do(f.Close())
	if _, err := os.Stat(in("moved/x")); err != nil {
		t.Errorf("it was not written where it was looked at: %v", err)
	}
}
