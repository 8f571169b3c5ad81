package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/replicad/replicad/internal/config"
)

func keyFile(t *testing.T, mode os.FileMode, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key.txt")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// Keys come from a file or a command. What can't be is refused when the daemon starts, and no part of a key is shown.
func TestDurableKeys(t *testing.T) {
	var ids []*age.X25519Identity
	for range 2 {
		id, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	to := []string{ids[0].Recipient().String()}
	good := keyFile(t, 0o600, "# created", ids[0].String())
	sh := func(script string) []string { return []string{"/bin/sh", "-c", script} }
	for name, tc := range map[string]struct {
		c    config.Config
		want string // of the error; empty: none
	}{
		"nothing":                {config.Config{}, ""},
		"a file":                 {config.Config{DurableRecipients: to, DurableIdentities: good}, ""},
		"a key alone":            {config.Config{DurableIdentities: good}, ""},
		"a command":              {config.Config{DurableRecipients: to, DurableIdentitiesCommand: sh("cat " + good)}, ""},
		"no such file":           {config.Config{DurableIdentities: good + "x"}, "no such file"},
		"a directory":            {config.Config{DurableIdentities: filepath.Dir(good)}, "no regular file"},
		"a file for all":         {config.Config{DurableIdentities: keyFile(t, 0o644, ids[0].String())}, "chmod 600"},
		"no key in it":           {config.Config{DurableIdentities: keyFile(t, 0o600, "# none")}, "want keys as age-keygen writes them"},
		"half a key":             {config.Config{DurableIdentities: keyFile(t, 0o600, ids[0].String()[:40])}, "want keys as age-keygen writes them"},
		"a recipient, no key":    {config.Config{DurableRecipients: to}, "want keys as age-keygen writes them"},
		"another's key":          {config.Config{DurableRecipients: []string{ids[1].Recipient().String()}, DurableIdentities: good}, "opens nothing that is encrypted to durable_recipients"},
		"no recipient":           {config.Config{DurableRecipients: []string{"age1xyz"}, DurableIdentities: good}, `durable_recipients: recipient "age1xyz"`},
		"a key as a recipient":   {config.Config{DurableRecipients: []string{ids[0].String()}, DurableIdentities: good}, "secret key (not shown)"},
		"a command that fails":   {config.Config{DurableIdentitiesCommand: sh("echo " + ids[0].String() + "; echo no vault here >&2; exit 3")}, "exit status 3: no vault here"},
		"a command of no keys":   {config.Config{DurableIdentitiesCommand: sh("true")}, "want keys as age-keygen writes them"},
		"no such command":        {config.Config{DurableIdentitiesCommand: []string{"/nowhere/x"}}, "/nowhere/x"},
		"a command without end":  {config.Config{DurableIdentitiesCommand: sh("head -c 2000000 /dev/zero")}, "more than 1048576 bytes"},
		"a talkative error says": {config.Config{DurableIdentitiesCommand: sh("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1")}, strings.Repeat("x", 100)},
	} {
		k, err := durableKeys(t.Context(), &tc.c)
		switch {
		case tc.want == "" && (err != nil || k.Seals() != (len(tc.c.DurableRecipients) > 0)):
			t.Errorf("%s: %v", name, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 2000):
			t.Errorf("%s: %v", name, err)
		case err != nil && strings.Contains(fmt.Sprint(err), ids[0].String()[16:30]):
			t.Errorf("%s: it shows a key: %v", name, err)
		}
	}
}

// TestCheckRunsNoProgram: whoever checks a configuration has not decided yet that what it names is to run.
func TestCheckRunsNoProgram(t *testing.T) {
	dir := t.TempDir()
	program, ran := filepath.Join(dir, "keys"), filepath.Join(dir, "ran")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n: >"+ran+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := &config.Config{DurableIdentitiesCommand: []string{program}}
	if err := checkKeys(t.Context(), c); err != nil || !strings.Contains(KeysUnread(c), program) {
		t.Errorf("%v, %q", err, KeysUnread(c))
	}
	if _, err := os.Stat(ran); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the program was run: %v", err)
	}
	if err := os.Chmod(program, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkKeys(t.Context(), c); err == nil || !strings.Contains(err.Error(), program) {
		t.Errorf("a program that may not be run: %v", err)
	}
}
