package session

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "d.sock")
	s, err := Listen(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if st, err := os.Stat(name); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v: %v", name, st.Mode(), want, err)
		}
	}
}

func TestSocketInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	s, err := Listen(Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = Listen(Config{Path: path})
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "stop that one") {
		t.Errorf("%v", err)
	}
	if c, err := net.Dial("unixpacket", path); err != nil {
		t.Errorf("the running daemon lost its socket: %v", err)
	} else {
		_ = c.Close()
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.sock")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close() // as a daemon that was killed leaves it
	s := serve(t, Config{Path: path})
	greeted(t, s)
}

func TestBadSocketPaths(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	cases := map[string][2]string{
		"too long":       {filepath.Join(dir, strings.Repeat("x", 100)), "shorter path"},
		"empty":          {"", "shorter path"},
		"under a file":   {filepath.Join(file, "d.sock"), "choose one that this user can write"},
		"a file":         {file, "something else"},
		"open directory": {filepath.Join(open, "d.sock"), "chmod o-w"},
	}
	if os.Geteuid() != 0 {
		locked := filepath.Join(dir, "locked")
		if err := os.Mkdir(locked, 0o500); err != nil {
			t.Fatal(err)
		}
		cases["unwritable"] = [2]string{filepath.Join(locked, "d.sock"), "can write"}
	}
	for name, c := range cases {
		s, err := Listen(Config{Path: c[0]})
		if err == nil {
			s.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		if !strings.Contains(err.Error(), c[0]) || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %q does not name %q and %q", name, err, c[0], c[1])
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Error("a file in the socket's place was removed")
	}
	if _, err := Listen(Config{Path: filepath.Join(dir, "d.sock"), MaxPeers: -1}); err == nil {
		t.Error("negative peers")
	}
}
