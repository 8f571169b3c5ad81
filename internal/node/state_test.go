package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
	"golang.org/x/sys/unix"
)

// A state directory belongs to one node of one cluster, from the first start on.
func TestStateDirectoryIsOneNodes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	open := func(cluster replica.ClusterID, node replica.NodeName) error {
		d := &daemon{cfg: &config.Config{Node: node, StateDir: dir}, id: &pki.Identity{Cluster: cluster, Node: node}}
		defer d.close()
		return d.openState()
	}
	for start := range 3 {
		if err := open(fixture.Cluster, "n1"); err != nil {
			t.Fatalf("start %d: %v", start+1, err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != "lock" || left[1].Name() != "node.json" {
		t.Errorf("the directory holds %v: %v", left, err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory is open to others: %v, %v", st.Mode(), err)
	}
	mark := filepath.Join(dir, "node.json")
	good, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error, texts ...string) {
		t.Helper()
		if err == nil {
			t.Errorf("%s is opened", what)
			return
		}
		for _, text := range append(texts, dir) {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: error %q does not say %q", what, err, text)
			}
		}
	}
	refused("another node's directory", open(fixture.Cluster, "n2"), `"n1"`, `"n2"`, "use its own directory")
	other := fixture.Cluster
	other[5]++
	refused("another cluster's directory", open(other, "n1"), fixture.Cluster.String(), other.String(), "use its own directory")
	if err := errors.Join(os.Remove(mark), unix.Mkfifo(mark, 0o600)); err != nil {
		t.Fatal(err)
	}
	refused("a named pipe", open(fixture.Cluster, "n1"), "not a regular file")
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string]string{
		"garbage":              "garbage",
		"nothing":              "",
		"another version's":    strings.Replace(string(good), `"version":1`, `"version":2`, 1),
		"another program's":    strings.Replace(string(good), "replicad-node", "somebody", 1),
		"good with more to it": string(good) + "{}",
	} {
		if err := os.WriteFile(mark, []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
		refused("a directory whose mark is "+what, open(fixture.Cluster, "n1"))
		if now, err := os.ReadFile(mark); err != nil || string(now) != b {
			t.Errorf("the mark of %s was changed to %q: %v", what, now, err)
		}
	}
	if err := os.WriteFile(mark, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(fixture.Cluster, "n1"); err != nil {
		t.Errorf("its own directory: %v", err)
	}
	if os.Geteuid() == 0 { // only root can give a directory to another user
		if err := os.Chown(dir, 1002, -1); err != nil {
			t.Fatal(err)
		}
		refused("another user's directory", open(fixture.Cluster, "n1"), "belongs to user 1002", "runs as user 0")
		if err := os.Chown(dir, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	dir = filepath.Join(mark, "below a file")
	refused("a place where no directory can be", open(fixture.Cluster, "n1"), "give the daemon a directory that it alone may write")
}

// Two daemons of one node would have two memories, and the second to register would have the first one's count as lost: ports and
// sockets may differ, the state directory does not.
func TestStateDirectoryIsOneDaemons(t *testing.T) {
	dir := t.TempDir()
	open := func() (*daemon, error) {
		d := &daemon{cfg: &config.Config{Node: "n1", StateDir: dir}, id: &pki.Identity{Cluster: fixture.Cluster, Node: "n1"}}
		t.Cleanup(d.close)
		return d, d.openState()
	}
	first, err := open()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := open()
		if err == nil {
			t.Fatal("a second daemon opens the directory of one that runs")
		}
		for _, text := range []string{dir, "in use by another running daemon", "stop that one", "a state_dir of its own"} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("error %q does not say %q", err, text)
			}
		}
	}
	first.close()
	if _, err := open(); err != nil {
		t.Errorf("once the first has ended: %v", err)
	}
}

// FuzzStateMark: what is read is written and read again as the same, and what is refused names nobody.
func FuzzStateMark(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte(`{"magic":"replicad-node","version":1,"cluster":"0c000000-0000-0000-0000-000000000000","node":"n1"}`))
	f.Add([]byte(`{"magic":"replicad-node","version":1e2,"cluster":"x","node":["n1"]}`))
	f.Add(make([]byte, maxStateMark+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseStateMark(b)
		if err != nil {
			if m != (stateMark{}) {
				t.Errorf("%+v beside an error", m)
			}
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > maxStateMark {
			return // escapes take more room than what they stand for
		}
		if back, err := parseStateMark(again); err != nil || back != m {
			t.Errorf("%+v comes back as %+v: %v", m, back, err)
		}
	})
}
