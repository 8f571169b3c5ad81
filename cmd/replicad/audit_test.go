package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/audit"
)

func TestAuditVerify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := audit.Open(path, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	l.Append("joined", audit.Fields{"node": "n1"})
	l.Append("joined", audit.Fields{"node": "n2"})
	l.Close()
	if code, out, errout := try(t, "audit", "verify", path); code != exitOK || !strings.Contains(out, "2 lines, numbers 1 to 2") {
		t.Errorf("code %d: %s%s", code, out, errout)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(b, []byte(`"n1"`), []byte(`"n3"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errout := try(t, "audit", "verify", path); code != exitFailed || !strings.Contains(errout, path+", line 2: number 2 was written after another line") {
		t.Errorf("code %d: %s", code, errout)
	}
	if code, _, errout := try(t, "audit", "verify", path+"x"); code != exitFailed || !strings.Contains(errout, path+"x") {
		t.Errorf("code %d: %s", code, errout)
	}
}
