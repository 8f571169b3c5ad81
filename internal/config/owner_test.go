package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/replicad/replicad/replica"
)

// TestDaemonUser: only who could put any daemon there anyway names another user's.
func TestDaemonUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	write := func(c *Config) {
		b, err := yaml.Marshal(c)
		if err == nil {
			err = errors.Join(os.RemoveAll(path), os.WriteFile(path, b, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := good()
	c.DaemonUser = "61002"
	write(c)
	got, err := Load(path)
	if err != nil || !slices.Equal(got.Daemons(), []uint32{61002}) {
		t.Fatalf("%v, %v", got, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "daemon_user") || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("open to others: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, 1002, -1)); err != nil {
			t.Fatal(err)
		}
		if got, err := Load(path); err != nil || got.Daemons() != nil {
			t.Errorf("another user's: believes %v, %v", got.Daemons(), err)
		}
	}
	c.DaemonUser = "nobody-of-that-name"
	write(c)
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "nobody-of-that-name") {
		t.Errorf("no user: %v", err)
	}
}

// TestDevFolder: nothing is read or written in a dev folder that somebody else may have put there, and verbs that need a daemon make none.
func TestDevFolder(t *testing.T) {
	base := t.TempDir()
	dir, elsewhere := filepath.Join(base, ".replicad-dev"), filepath.Join(base, "file")
	made := 0
	pki := func(string, replica.NodeName) error { made++; return nil }
	if _, err := Dev(dir, nil); err == nil || !strings.Contains(err.Error(), "replicad daemon --dev") {
		t.Errorf("without a cluster: %v", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder was made: %v", err)
	}
	// A planted folder, whose link would have a file of this user's be overwritten.
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "pki"), 0o777), os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(dir, "pki", "ca.pem"), nil, 0o600),
		os.WriteFile(elsewhere, []byte("mine"), 0o600), os.Symlink(elsewhere, filepath.Join(dir, "address.new"))); err != nil {
		t.Fatal(err)
	}
	for _, makes := range []func(string, replica.NodeName) error{nil, pki} {
		if _, err := Dev(dir, makes); err == nil || !strings.Contains(err.Error(), "can be written by others") {
			t.Errorf("a folder that others may write: %v", err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Dev(dir, pki); err == nil {
		t.Error("a link out of the folder is written through")
	}
	if b, err := os.ReadFile(elsewhere); err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Dev(link, pki); err == nil || !strings.Contains(err.Error(), "is a link") || made > 0 {
		t.Errorf("a link: %v, made %d", err, made)
	}
}

// TestDevFolderInASharedOne: where others may put another folder in its place, nothing is made, written or read, whoever owns it.
func TestDevFolderInASharedOne(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "shared")
	dir := filepath.Join(base, ".replicad-dev")
	pki := func(string, replica.NodeName) error { t.Error("an identity was made"); return nil }
	if err := errors.Join(os.Mkdir(base, 0o700), os.Chmod(base, 0o777)); err != nil {
		t.Fatal(err)
	}
	refused := func(what string) {
		t.Helper()
		for _, makes := range []func(string, replica.NodeName) error{nil, pki} {
			if _, err := Dev(dir, makes); err == nil || !strings.Contains(err.Error(), base+" can be written by everybody") || !strings.Contains(err.Error(), "set XDG_STATE_HOME") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	refused("nothing there")
	if list, err := os.ReadDir(base); err != nil || len(list) > 0 {
		t.Errorf("made: %v, %v", list, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	refused("this user's own")
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("made: %v, %v", list, err)
	}
}

// TestAKeyIsNotShown: one that stands where its file belongs comes into no error.
func TestAKeyIsNotShown(t *testing.T) {
	const key = "AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ"
	path := filepath.Join(t.TempDir(), "c.yaml")
	c := good()
	c.DurableIdentities = key
	b, err := yaml.Marshal(c)
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "durable_identities") {
		t.Errorf("%v", err)
	}
}
