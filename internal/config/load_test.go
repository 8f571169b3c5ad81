package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
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
		{"misspelt field", "node: a\nadr: x\n", "want addr or addrs (did you mean that?)"},
		{"misspelt nested field", "node: a\ntiming:\n  acks: 1s\n", "want ack (did you mean that?)"},
		{"field twice", "node: a\nnode: b\n", "[2:1]"},
		{"not YAML", "node: [a\n", "["},
		{"a list", "- a\n", "[1:"},
		{"duration without unit of sense", "timing: {ack: 5 parsecs}\n", "parsecs"},
		{"size", "memory_margin: 5 apples\n", "5 apples"},
		{"empty", "", "empty"},
		{"comments alone", "# nothing\n", "empty"},
		{"byte order mark", "\ufeffnode: a\n", "byte order mark (U+FEFF)"},
		{"not UTF-8", "node: \"\xff\"\n", "not UTF-8"},
		{"anchor", "node: &a a\n", "[1:7] anchors and aliases"},
		{"alias", "node: *a\n", "[1:7] anchors and aliases"},
		{"merged", "timing: {<<: {ack: 1s}}\n", "[1:10] anchors and aliases"},
		{"tag", "node: !!binary YQ==\n", "[1:7] tags"},
		{"directive", "%YAML 1.2\n---\nnode: a\n", "directives"},
		{"empty secret", "job_secret: \"\"\n", "\njob_secret: [1:13] \"\": want a value, or no such line"},
		{"secret left out", "job_secret:\nnode: a\n", "\njob_secret: [1:12] nothing: want a value"},
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

// TestSecretIsForItsOwnerAlone: a file that others may read keeps no secret.
func TestSecretIsForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	for _, tc := range []struct {
		secret string
		mode   os.FileMode
		good   bool
	}{{"sixteen-bytes-of", 0o600, true}, {"sixteen-bytes-of", 0o400, true}, {"sixteen-bytes-of", 0o640, false}, {"sixteen-bytes-of", 0o604, false}, {"sixteen-bytes-of", 0o620, false}, {"", 0o644, true}} {
		c := good()
		c.JobSecret = tc.secret
		if err := c.Write(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tc.mode); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		if (err == nil) != tc.good {
			t.Errorf("secret %q in a file of mode %v: %v", tc.secret, tc.mode, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "chmod 600 "+path) || strings.Contains(err.Error(), tc.secret+" ")) {
			t.Errorf("%v", err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNoErrorShowsTheSecret: errors go to the journal. Each one-letter mistake that a hand can make leaves the secret out of them.
func TestNoErrorShowsTheSecret(t *testing.T) {
	const canary = "CANARY7f3a9-0123456789"
	base := "node: a\ntiming: {ack: 10s}\nseeds: [x:1]\njob_secret: " + canary + "\nlabels:\n  rack: r1\n"
	dir := t.TempDir()
	read := 0
	check := func(text string) {
		path := filepath.Join(dir, "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%q: %v", text, err)
		}
		read++
	}
	for at := range base {
		if at > strings.Index(base, canary) && at < strings.Index(base, canary)+len(canary) {
			continue // it is another secret then
		}
		check(base[:at] + base[at+1:])
		for _, sign := range " \n\t\"':,{}[]#&*!|>%@`-?\\\x00" {
			check(base[:at] + string(sign) + base[at:])
			check(base[:at] + string(sign) + base[at+1:])
		}
	}
	for _, line := range []string{"job_secret: [" + canary + "]", "job_secret: {" + canary + ": x}", "job_secret: " + canary + ": x", "job_secret: \"" + canary, "job_secret " + canary, "\tjob_secret: " + canary, "- " + canary} {
		check("node: a\n" + line + "\n")
	}
	if read < 1000 {
		t.Errorf("%d files were read", read)
	}
}

// TestBombs: 2 KB of aliases took gigabytes, and a deep nest of brackets minutes. (The test's own deadline is what it fails by.)
func TestBombs(t *testing.T) {
	aliases := "a0: &a0 [x]\n"
	for i := 1; i < 12; i++ {
		aliases += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	var stairs strings.Builder
	for i := 0; stairs.Len() < 60<<10; i++ {
		stairs.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	texts := map[string]string{"aliases": aliases, "stairs": stairs.String()}
	for _, unit := range []string{"[", "{a: ", "- ", "? ", "!!a ", "&a ", "*a ", "a: b\n", "\"", "#\n", ": ", "---\n", "|\n", "[a,"} {
		texts[unit] = strings.Repeat(unit, (60<<10)/len(unit))
		texts[unit+" just within the words"] = strings.Repeat(unit, maxTokens/4)
	}
	for name, text := range texts {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || len(err.Error()) > 1<<20 {
			t.Errorf("%q: an error of %d bytes", name, len(fmt.Sprint(err)))
		}
	}
	if _, err := Load("/dev/null"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a device: %v", err)
	}
}

// TestExplicitZeros: a zero that somebody wrote is meant, and is no default's place holder.
func TestExplicitZeros(t *testing.T) {
	text, err := os.ReadFile("../../docs/replicad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	base := string(text)
	for _, line := range []string{"durable_keep", "keep_runs", "scrub_rate", "reread_rate", "reread_every", "donor_rate", "memory_margin", "durable_dir", "socket", "timing", "raft", "log"} {
		base = regexp.MustCompile(`(?m)^`+line+`:.*\n( .*\n)*`).ReplaceAllString(base, "")
	}
	path := filepath.Join(t.TempDir(), "c.yaml")
	load := func(more string) error {
		if err := os.WriteFile(path, []byte(base+more), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		return err
	}
	if err := load(""); err != nil {
		t.Fatalf("without any of them: %v", err)
	}
	if err := load("timing:\nlog:\n"); err != nil {
		t.Errorf("empty sections: %v", err)
	}
	for text, want := range map[string]string{"": "/var/lib/replicad/spool", "spool_dir: none\n": NoSpool, "spool_dir: /nvme\n": "/nvme", "spool_dir: here\n": filepath.Join(filepath.Dir(path), "here")} {
		if err := load(text); err != nil {
			t.Errorf("%q: %v", text, err)
		} else if c, err := Load(path); err != nil || c.SpoolDir != want {
			t.Errorf("%q: the spool is %q, want %q", text, c.SpoolDir, want)
		}
	}
	if err := load("scrub_rate: 0\nreread_rate: 0\n"); err != nil {
		t.Errorf("no scrubbing: %v", err)
	}
	for _, rate := range []string{"auto", "unlimited", "32MiB", "33554432"} {
		if err := load("donor_rate: " + rate + "\n"); err != nil {
			t.Errorf("a donor's rate: %v", err)
		}
	}
	all, want := "", []string{}
	for _, f := range []struct{ field, text string }{
		{"durable_keep", "durable_keep: 0"}, {"keep_runs", "keep_runs: 0"}, {"memory_margin", "memory_margin: 0"}, {"durable_dir", `durable_dir: ""`}, {"socket", `socket: ""`},
		{"log.level", `log: {level: ""}`}, {"timing.holder_grace", "timing: {holder_grace: 0s, ack: 0s, hang_factor: 0}"}, {"raft.watchdog", "raft: {watchdog: 0s}"},
	} {
		if err := load(f.text); err == nil || !strings.Contains(err.Error(), "\n"+f.field+": ") {
			t.Errorf("%s: %v", f.text, err)
		}
		all, want = all+f.text+"\n", append(want, f.field)
	}
	err = load(all + "adress: x\ntimings: {}\nvoter:\n")
	for _, field := range append(want, "timing.ack", "timing.hang_factor", "adress", "timings", "voter") {
		if err == nil || !strings.Contains(err.Error(), "\n"+field+": ") {
			t.Errorf("nothing about %s in: %v", field, err)
		}
	}
}

// TestFaultsOfBothKinds: what can't be read hides nothing of what can.
func TestFaultsOfBothKinds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	for _, tc := range []struct {
		text string
		want []string
	}{
		{"node: A\naddress: x\ntiming: {hurry: 1s, ack: 1ms}\nvoters:\n  - {nmae: a}\n  - {name: b, port: 1}\n", []string{
			"\naddress: [2:1] unknown: want addr or addrs (did you mean that?)", "\ntiming.hurry: [3:10] unknown: want one of abandoned, ack, ", "\ntiming.ack: 1ms", "\nnode: \"A\"", "\nvoters[0].nmae: [5:6]", "\nvoters[1].port: [6:15]"}},
		{"node: A\nmemory_margin: 5 apples\nraft: {watchdog: 1ms}\n", []string{"\nmemory_margin: [2:16] \"5 apples\": want a size such as 512MiB", "\nnode: \"A\"", "\nraft.watchdog: 1ms"}},
		{"memory_margin: -5GiB\ndurable_keep: x\ntiming: {ack: 1}\nlog: {commits: yes}\nnode:\nsocket: ''\nlabels: [a]\nseeds: {a: b}\nraft: x\npki: {ca: [x]}\nvoters: [x]\n", []string{
			"\nmemory_margin: [1:16] \"-5GiB\": want", "\ndurable_keep: [2:15] \"x\": want", "\ntiming.ack: [3:15] \"1\": want a time", "\nlog.commits: [4:16] \"yes\": want true or false", "\nnode: [5:6] nothing: want a value", "\nsocket: [6:9] \"\": want a value",
			"\nlabels: [7:9]: want names and values", "\nseeds: [8:8]: want a list", "\nraft: [9:7]: want the fields of this section", "\npki.ca: [10:11]: want one value", "\nvoters[0]: [11:10]: want the fields"}},
	} {
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("nothing of %q in: %v", want, err)
			}
		}
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
		c, faults, err := parse(data)
		if err != nil || len(faults) > 0 {
			return
		}
		_ = c.WithDefaults().Validate()
		text, err := c.text() // what Write stores
		if err != nil {
			t.Fatal(err)
		}
		again, faults, err := parse(text)
		if err = errors.Join(append(faults, err)...); err != nil {
			t.Fatalf("%v in what was written:\n%s", err, text)
		}
		if first, second := fmt.Sprintf("%+v", *c), fmt.Sprintf("%+v", *again); first != second { // nil and empty lists are one
			t.Errorf("read %s, written and read again %s", first, second)
		}
	})
}
