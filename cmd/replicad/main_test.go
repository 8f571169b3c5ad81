package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/launch"
	"github.com/replicad/replicad/internal/leakcheck"
)

// TestMain lets the test binary be replicad where a verb starts its own program again.
func TestMain(m *testing.M) {
	if os.Getenv("CMD_TEST") == "replicad" {
		main()
	}
	leakcheck.Main(m)
}

// try runs a verb in process.
func try(t *testing.T, args ...string) (code int, out, errout string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, stdio{strings.NewReader(""), &o, &e})
	return code, o.String(), e.String()
}

func TestWrongUse(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "none.yaml")
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"stat", exitUsage, "did you mean status"},
		{"fly", exitUsage, `unknown verb "fly"`},
		{"--fly", exitUsage, "--fly"},
		{"status extra", exitUsage, "status"},
		{"status --jsn", exitUsage, "--jsn"},
		{"status --config x --dev", exitUsage, "config"},
		{"status --config " + missing, exitConfig, missing},
		{"status --socket " + dir + "/none.sock", exitNobody, dir + "/none.sock"},
		{"job", exitOK, ""},
		{"job fly", exitUsage, `unknown verb "fly"`},
		{"job end", exitUsage, "job end"},
		{"job end Bad_Name!", exitUsage, "Bad_Name!"},
		{"pki init", exitUsage, "pki init"},
		{"pki init NODE", exitUsage, "NODE"},
		{"pki add --dir " + dir + " a", exitConfig, dir},
		{"pki operator", exitUsage, "pki operator"},
		{"pki operator NAME", exitUsage, "NAME"},
		{"pki operator --dir " + dir + " eve", exitConfig, dir},
		{"config check", exitUsage, "config check"},
		{"config check " + missing, exitConfig, missing},
		{"daemon --config " + missing, exitConfig, missing},
		{"keeper", exitUsage, "--socket"},
		{"version 2", exitUsage, "version"},
		{"chaos cluster --nodes a", exitUsage, "[dir]"},
		{"demo --pace -5s --trainer /bin/true", exitUsage, "--pace -5s"},
		{"demo --pace 0s --trainer /bin/true", exitUsage, "--pace 0s"},
		{"demo --steps 0 --trainer /bin/true", exitUsage, "--steps 0"},
		{"demo --trainer /no/such", exitUsage, "/no/such"},
		{"demo --world 3", exitUsage, "--world 3 with --groups [0 1 0]: a trainer with 2 shards trains whole replicas"},
		{"demo --groups 0,0 ", exitUsage, "--world 2 with --groups [0 0]: a trainer with 2 shards trains"},
		{"bench --only fly --out " + dir, exitUsage, "--only fly"},
		{"demo --faults x --trainer /bin/true", exitUsage, `"x"`},
		{"run --job j --world 1", exitUsage, "run"},
		{"run --config " + missing + " --job j --world 1 -- true", exitConfig, missing},
		{"run --socket s --job J --world 0 -- true", exitUsage, "--world 0"},
		{"run --socket s --job j --world 2 --groups 0,x -- true", exitUsage, `"x"`},
		{"run --socket s --job j --world 1 -- no-such-program", exitUsage, "no-such-program"},
	} {
		code, _, errout := try(t, strings.Fields(tc.args)...)
		if code != tc.code || !strings.Contains(errout, tc.says) {
			t.Errorf("replicad %s: code %d, want %d with %q:\n%s", tc.args, code, tc.code, tc.says, errout)
		}
	}
}

func TestHelpTellsTheExitCodes(t *testing.T) {
	code, out, _ := try(t, "--help")
	if code != exitOK || !strings.Contains(out, "Exit codes") || !strings.Contains(out, fmt.Sprintf("; %d given up", exitDoNotRequeue)) || !strings.Contains(out, fmt.Sprintf("; %d refused", exitRefused)) {
		t.Errorf("code %d:\n%s", code, out)
	}
	for _, v := range verbs(stdio{}) {
		if strings.Contains(out, v.Short) == v.Hidden {
			t.Errorf("of %s (hidden: %v) it says not what it should, in\n%s", v.Name(), v.Hidden, out)
		}
	}
}

func TestExitCode(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(launch.Signaled{Signal: syscall.SIGINT})
	for _, tc := range []struct {
		err  error
		want int
	}{{nil, 0}, {errors.New("x"), exitFailed}, {coded(exitConfig, errors.New("x")), exitConfig}, {&codedError{77, nil}, 77}, {ctx.Err(), 130}, {fmt.Errorf("while it ran: %w", context.Cause(ctx)), 130}} {
		if got := exitCode(ctx, tc.err); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.want)
		}
	}
	for _, end := range []error{nil, ctx.Err(), context.Cause(ctx)} {
		if err := servedUntil(ctx, end); err != nil {
			t.Errorf("the end that a signal asked for is an error: %v", err)
		}
	}
	if err := servedUntil(ctx, errors.New("disk full")); err == nil {
		t.Error("a failure while it ended is none")
	}
	if err := servedUntil(t.Context(), context.Canceled); err == nil {
		t.Error("an end that nobody asked for is none")
	}
}

func TestVersion(t *testing.T) {
	for _, args := range []string{"version", "--version"} {
		code, out, _ := try(t, args)
		if code != exitOK || !strings.HasPrefix(out, "replicad "+release+" ") || !strings.Contains(out, "go1.") || !strings.HasSuffix(out, "\n") {
			t.Errorf("%s: code %d: %q", args, code, out)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	if code, out, errout := try(t, "config", "check", "--file-only", "../../docs/replicad.yaml"); code != exitOK || !strings.Contains(out, "node a on 10.0.0.1:7400 is a voter (3 voter(s))") {
		t.Errorf("code %d: %s%s", code, out, errout)
	}
	example, err := os.ReadFile("../../docs/replicad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(t.TempDir(), "private.yaml")
	if err := os.WriteFile(private, bytes.ReplaceAll(example, []byte("durable_dir: /mnt/checkpoints"), nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errout := try(t, "config", "check", "--file-only", private); code != exitOK || !strings.Contains(out, "good") || !strings.Contains(errout, "warning: durable_dir: /var/lib/replicad/durable:") {
		t.Errorf("code %d: %s%s", code, out, errout)
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("node: A\ndurable_keep: -1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errout := try(t, "config", "check", bad); code != exitConfig || !strings.Contains(errout, "node:") || !strings.Contains(errout, "durable_keep:") {
		t.Errorf("code %d: %s", code, errout)
	}
}

// What a daemon would stumble over at its start is said beforehand, all of it, and nothing is made for that.
func TestConfigCheckLooksAtTheMachine(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if code, _, errout := try(t, "pki", "init", "--dir", at("pki"), "a", "b"); code != exitOK {
		t.Fatal(errout)
	}
	write := func(cert, key string) string {
		text := fmt.Sprintf("node: a\naddr: 127.0.0.1:7400\ngossip_addr: 127.0.0.1:7401\nvoters: [{name: a, addr: \"127.0.0.1:7400\"}]\nstate_dir: %s\ndurable_dir: %s\nsocket: %s\nadmin_socket: %s\nkeeper_socket: %s\n"+
			"pki: {ca: %s, cert: %s, key: %s, gossip_key: %s}\n", at("state"), at("durable"), at("run/ranks.sock"), at("run/admin.sock"), at("run/keeper.sock"), at("pki/ca.pem"), at("pki/"+cert), at("pki/"+key), at("pki/gossip.key"))
		if err := os.WriteFile(at("n.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return at("n.yaml")
	}
	check := func(file string, want int, says ...string) {
		t.Helper()
		code, out, errout := try(t, "config", "check", file)
		if code != want {
			t.Errorf("code %d, want %d: %s%s", code, want, out, errout)
		}
		for _, s := range says {
			if !strings.Contains(out+errout, s) {
				t.Errorf("%q is not in:\n%s%s", s, out, errout)
			}
		}
	}
	check(write("a.pem", "a-key.pem"), exitConfig, at("durable"), "make the directory")
	if err := os.Mkdir(at("durable"), 0o700); err != nil {
		t.Fatal(err)
	}
	check(write("a.pem", "a-key.pem"), exitOK, "good: node a", "durable_dir "+at("durable")+": ", " free")
	if _, err := os.Stat(at("state")); err == nil {
		t.Error("it has made state_dir")
	}
	if left, err := os.ReadDir(at("durable")); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	check(write("a.pem", "b-key.pem"), exitConfig, "a.pem with key "+at("pki/b-key.pem"))
	check(write("b.pem", "b-key.pem"), exitConfig, at("pki/b.pem")+` is of node "b", the configuration of node "a"`)
	if err := errors.Join(os.WriteFile(at("state"), nil, 0o600), os.Remove(at("pki/ca.pem")), os.Remove(at("pki/gossip.key")), os.Mkdir(at("run"), 0o700), os.Chmod(at("run"), 0o777)); err != nil {
		t.Fatal(err)
	}
	check(write("a.pem", "a-key.pem"), exitConfig, at("pki/ca.pem"), at("pki/gossip.key"), "state_dir "+at("state"), "chmod o-w "+at("run"))
}

func TestPKI(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if code, out, errout := try(t, "pki", "init", "--dir", dir, "a", "b"); code != exitOK || !strings.Contains(out, "2 node(s)") {
		t.Fatalf("code %d: %s%s", code, out, errout)
	}
	if code, _, errout := try(t, "pki", "add", "--dir", dir, "c"); code != exitOK {
		t.Fatalf("code %d: %s", code, errout)
	}
	for _, f := range []string{"ca.pem", "gossip.key", "a.pem", "b-key.pem", "c.pem"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Error(err)
		}
	}
	if code, _, errout := try(t, "pki", "init", "--dir", dir, "a"); code != exitConfig || !strings.Contains(errout, dir) {
		t.Errorf("init over an identity: code %d: %s", code, errout)
	}
}
