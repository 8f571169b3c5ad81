//go:build cgo

package trouble_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// filesOf makes a folder with files, one of them a link as Hugging Face's cache has them.
func filesOf(t *testing.T, config string) (dir string, want map[string]string) {
	t.Helper()
	dir = t.TempDir()
	want = map[string]string{"config.json": config, "tokenizer.json": "[1]", "sub/vocab.txt": "a\nb\n"}
	for name, text := range map[string]string{"config.json": config, "blob": "[1]", "tok/sub/vocab.txt": want["sub/vocab.txt"]} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../blob", filepath.Join(dir, "tok", "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	return dir, want
}

// exports are the files beside the weights that an export of the newest generation has.
func (n *node) exports(job string) map[string]string {
	n.t.Helper()
	out := filepath.Join(n.t.TempDir(), "out")
	if code, text := call(n.t, "ckpt", "export", filepath.Join(n.cfg.DurableDir, job), out, "--to", "hf"); code != 0 {
		n.t.Fatalf("ckpt export: code %d: %s", code, text)
	}
	got := map[string]string{}
	err := filepath.WalkDir(out, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(out, path)
		got[name] = string(b)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	if len(got["model.safetensors"]) == 0 {
		n.t.Errorf("the export has no weights: %v", slices.Sorted(maps.Keys(got)))
	}
	delete(got, "model.safetensors")
	return got
}

// TestRunCarriesFiles: files that a launcher names come into the run once, and out of it beside the weights, byte for byte, also by a fleet of another pki
// that goes on with the run; whoever gives others is told with both digests. A sweep leaves them.
func TestRunCarriesFiles(t *testing.T) {
	t.Parallel()
	n := one(t)
	dir, want := filesOf(t, "{}")
	run := func(flags ...string) *process {
		return n.run("lm", 1, rankSpec{}, append([]string{"--durable-every", "5", "--keep-file", dir + "/tok/", "--keep-file", dir + "/config.json"}, flags...)...)
	}
	l := run()
	n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	if got := n.exports("lm"); !maps.Equal(got, want) {
		t.Errorf("exported: %v", got)
	}
	code, out := call(t, "ckpt", "show", n.cfg.DurableDir+"/lm")
	if code != 0 {
		t.Errorf("ckpt show: code %d", code)
	}
	contains(t, out, "config.json, 2 B", "sub/vocab.txt, 4 B", "tokenizer.json, 3 B")
	if out := l.output(); strings.Contains(out, "--keep-file") {
		t.Errorf("the launcher of the files has something to say of them: %s", out)
	}

	dir, _ = filesOf(t, "{other}")
	late := run("--spare")
	late.awaitText(0, "the run carries other files already (SHA-256 ")
	late.kill()

	l.kill()
	n.die()
	n.afresh()
	l = run("--resume")
	l.await("loaded", fields{"source": "durable"})
	n.daemon.awaitFrom(0, "durable", nil)
	l.awaitText(0, "--keep-file: the run carries other files already (SHA-256 ")
	if again := strings.Count(l.output(), "--keep-file"); again != 1 {
		t.Errorf("it is said %d times", again)
	}
	l.kill()
	n.die()
	if code, out := call(t, "ckpt", "prune", n.cfg.DurableDir+"/lm", "--keep", "1", "--grace", "0s", "--nobody-writes"); code != 0 {
		t.Errorf("ckpt prune: code %d: %s", code, out)
	}
	if got := n.exports("lm"); !maps.Equal(got, want) {
		t.Errorf("exported after a resume and a sweep: %v", got)
	}
	code, out = call(t, "ckpt", "verify", n.cfg.DurableDir+"/lm")
	contains(t, out, ": good, ")
	tars, err := filepath.Glob(filepath.Join(n.cfg.DurableDir, "lm", "*", "kept.tar"))
	if err != nil || len(tars) != 1 || code != 0 {
		t.Fatalf("%v, %v; verify: code %d: %s", tars, err, code, out)
	}
	if err := os.Remove(tars[0]); err != nil {
		t.Fatal(err)
	}
	code, out = call(t, "ckpt", "verify", n.cfg.DurableDir+"/lm")
	if code != 1 {
		t.Errorf("ckpt verify without the files: code %d", code)
	}
	contains(t, out, "kept.tar is missing", "the state does not need it", ": good, ")
}

// TestFilesOfOneNode: the files come into the run from the one node whose launcher has them, also where another one writes the commits.
func TestFilesOfOneNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	dir, want := filesOf(t, "{}")
	for _, n := range c.nodes {
		n.start()
	}
	c.nodes[0].run("job", 2, rankSpec{}, "--ranks", "0", "--durable-every", "5")
	c.nodes[1].run("job", 2, rankSpec{}, "--ranks", "1", "--durable-every", "5", "--keep-file", dir+"/tok/", "--keep-file", dir+"/config.json")
	n := c.nodes[0]
	n.daemon.await("durable", nil)
	if got := n.exports("job"); !maps.Equal(got, want) {
		t.Errorf("exported: %v", got)
	}
}

// TestFilesThatCannotBeKept: nothing is started for files that cannot be kept; the launcher names them.
func TestFilesThatCannotBeKept(t *testing.T) {
	t.Parallel()
	n := one(t)
	dir, _ := filesOf(t, "{}")
	other, _ := filesOf(t, "{}")
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	for says, flags := range map[string][]string{
		"gone: no such file":                      {"--keep-file", dir + "/gone"},
		"would both be called \"config.json\"":    {"--keep-file", dir + "/config.json", "--keep-file", other + "/"},
		"no file is in":                           {"--keep-file", dir + "/empty"},
		"/dev/null is no file that can be kept (": {"--keep-file", "/dev/null"},
	} {
		l := n.run("lm", 1, rankSpec{}, flags...)
		if code := l.exit(); code != 2 {
			t.Errorf("%v: code %d", flags, code)
		}
		l.says(says)
	}
	n.cfg.DurableDir = ""
	n.write()
	n.die()
	n.start()
	l := n.run("lm", 1, rankSpec{}, "--keep-file", dir+"/config.json")
	if code := l.exit(); code == 0 || strings.Contains(l.output(), "attached") {
		t.Errorf("code %d: %s", code, l.output())
	}
	l.says("this node has no durable tier to keep files in")
}
