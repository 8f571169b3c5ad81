package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestExampleLoads(t *testing.T) {
	c, err := Load("../../docs/replicad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.Node != "a" || len(c.Voters) != 3 || c.MemoryMargin != 1<<30 || c.Labels["rack"] != "r1" {
		t.Errorf("%+v", c)
	}
}

func TestWriteLoadRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replicad.yaml")
	want := good()
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("wrote %+v\nread %+v", want, got)
	}
}

func TestRelativePathsCountFromTheFile(t *testing.T) {
	dir := t.TempDir()
	c := good()
	c.StateDir, c.PKI.CA = "state", "pki/ca.pem"
	path := filepath.Join(dir, "x.yaml")
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.StateDir != filepath.Join(dir, "state") || got.PKI.CA != filepath.Join(dir, "pki/ca.pem") || got.DurableDir != "/mnt/durable" {
		t.Errorf("%+v", got)
	}
}

func TestBadFiles(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown field", "node: a\naddress: x\n", "[2:1]"},
		{"unknown nested field", "node: a\ntiming:\n  hurry: 1s\n", "[3:3]"},
		{"field twice", "node: a\nnode: b\n", "[2:1]"},
		{"not YAML", "node: [a\n", "["},
		{"a list", "- a\n", "[1:"},
		{"duration without unit of sense", "timing: {ack: 5 parsecs}\n", "parsecs"},
		{"size", "memory_margin: 5 apples\n", "5 apples"},
		{"empty", "", "empty"},
		{"two documents", "node: a\n---\nnode: b\n", "more than one"},
		{"too large", "#" + strings.Repeat("x", MaxFileBytes), "more than"},
		{"invalid values", "node: A\n", "node: \"A\""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(path)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("want an error with %q and the path, got: %v", tc.want, err)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(err.Error(), "none.yaml") || !strings.Contains(err.Error(), "--dev") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestBytes(t *testing.T) {
	for s, want := range map[string]Bytes{"0": 0, "1": 1, "7B": 7, "64KiB": 64 << 10, " 512 MiB ": 512 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40} {
		if got, err := ParseBytes(s); got != want || err != nil {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "MiB", "-1", "1.5GiB", "1 MB", "99999999999TiB", "18446744073709551616"} {
		if got, err := ParseBytes(s); err == nil {
			t.Errorf("%q is taken for %d", s, got)
		}
	}
}

// FuzzParse: no input panics, and what is read is read again after it was written.
func FuzzParse(f *testing.F) {
	if example, err := os.ReadFile("../../docs/replicad.yaml"); err == nil {
		f.Add(example)
	}
	for _, s := range []string{"", "node: a", "a: &x [*x]", "labels: {a: b, <<: {c: d}}", "timing: {ack: 1s}\n", "memory_margin: 1GiB", "voters: [{name: a}, &b {name: b}, *b]", "%YAML 1.2\n---\nnode: !!binary x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			return
		}
		_ = c.WithDefaults().Validate()
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := c.Write(path); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("%v in what was written:\n%s", err, text)
		}
		if first, second := fmt.Sprintf("%+v", *c), fmt.Sprintf("%+v", *again); first != second { // nil and empty lists are one
			t.Errorf("read %s, written and read again %s", first, second)
		}
	})
}
