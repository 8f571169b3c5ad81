//go:build cgo

package trouble_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
)

// TestEncryptedJob: a job of two nodes writes encrypted generations, and all of it is killed. A fleet with the key goes on with every bit, one without is
// refused with a sentence that names it, and a plain copy needs none.
func TestEncryptedJob(t *testing.T) {
	t.Parallel()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir, to := shortDir(t), id.Recipient().String()
	key := filepath.Join(t.TempDir(), "key.txt")
	if err := os.WriteFile(key, []byte(id.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.cfg.DurableDir, n.cfg.DurableRecipients = dir, []string{to}
	}
	c.nodes[0].cfg.DurableIdentities, c.nodes[1].cfg.DurableIdentitiesCommand = key, []string{"/bin/cat", key}
	for _, n := range c.nodes {
		n.write()
		n.launch()
	}
	run := func(flags ...string) (launchers []*process) {
		for i, n := range c.nodes {
			n.daemon.await("linked", nil)
			launchers = append(launchers, n.run("job", 2, rankSpec{Pace: 10 * time.Millisecond}, append([]string{"--groups", "0,1", "--ranks", fmt.Sprint(i)}, flags...)...))
		}
		return launchers
	}
	launchers := run("--durable-every", "5")
	leader := c.nodes[0]
	for range 2 {
		leader.daemon.awaitFrom(leader.daemon.mark(), "durable", nil)
	}
	leader.daemon.await("note", fields{"code": "durable_read"})
	newest := leader.daemon.newestDurable()
	for i, n := range c.nodes {
		launchers[i].kill()
		n.die()
	}
	sealed := 0
	for _, pattern := range []string{"job/*/step-*/*", "job/*/frozen/*"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			sealed++
			magic := []byte("age-encryption.org/v1\n")
			if broken := strings.HasPrefix(filepath.Base(f), "~") && bytes.HasPrefix(magic, b); !broken && !bytes.HasPrefix(b, magic) { // a write that was killed as it began
				t.Errorf("%s is not encrypted", f)
			}
		}
	}
	if sealed == 0 {
		t.Error("nothing was written")
	}

	without := newCluster(t, "m1").nodes[0]
	without.cfg.DurableDir = dir
	without.write()
	without.start()
	l := without.run("job", 2, rankSpec{}, "--groups", "0,1", "--resume")
	if code := l.exit(); code == 0 {
		t.Error("it was resumed without a key")
	}
	l.says("is encrypted to "+to, "name its key's file in durable_identities")

	for _, n := range c.nodes {
		if err := os.RemoveAll(n.cfg.StateDir); err != nil {
			t.Fatal(err)
		}
		if n == leader {
			n.flags = []string{"--bootstrap"} // again: its log is gone
		}
		n.launch()
	}
	launchers = run("--resume")
	at := launchers[0].await("loaded", fields{"source": "durable"})
	if step := int(at.fields["step"].(float64)); step < newest {
		t.Errorf("it goes on from step %d, and step %d was durable", step, newest)
	}
	launchers[0].awaitFrom(launchers[0].mark(), "step", nil)
	for i, n := range c.nodes {
		launchers[i].kill()
		n.die()
	}

	plain := shortDir(t)
	if code, out := call(t, "ckpt", "cp", "--decrypt", "--identity", key, dir+"/job", plain); code != 0 || !strings.Contains(out, "copied step") {
		t.Fatalf("code %d: %s", code, out)
	}
	without.die()
	without.cfg.DurableDir = plain
	without.write()
	without.afresh()
	l = without.run("job", 2, rankSpec{}, "--groups", "0,1", "--resume")
	if again := l.await("loaded", fields{"source": "durable"}); again.fields["step"] != at.fields["step"] {
		t.Errorf("the plain copy is of step %v, and the fleet with the key went on from %v", again.fields["step"], at.fields["step"])
	}
	l.awaitFrom(l.mark(), "step", nil)
}
