package session

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/otheruser"
	"github.com/replicad/replicad/internal/wire"
)

// openDir is a directory that other users can pass: t.TempDir is closed to them.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "session-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // that is what it is for
		t.Fatal(err)
	}
	return dir
}

// Users that the configuration names are let in with their number, and nobody else is, though the socket is open to all.
func TestUsers(t *testing.T) {
	const alice, mallory = 61001, 61002
	s := serve(t, Config{Path: filepath.Join(openDir(t), "run", "ranks.sock"), Users: []int{alice}})
	hello := wire.AppendRank(nil, wire.RankHeader{Type: wire.MHello, Request: 1}, wire.Hello{ABI: wire.RankABI, World: 2, Job: "job"}.Append(nil))

	c := otheruser.Dial(t, s.cfg.Path, alice)
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	if got := next[Hello](t, s).Peer.UID(); got != alice {
		t.Errorf("user %d is taken for user %d", alice, got)
	}

	c = otheruser.Dial(t, s.cfg.Path, mallory)
	b := make([]byte, wire.MaxRankMessage)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	_, body, err := wire.ParseRank(b[:n])
	if err != nil {
		t.Fatal(err)
	}
	if r, err := wire.ParseRefused(body); err != nil || !strings.Contains(r.Text, "user 61002") || !strings.Contains(r.Text, "rank_users") {
		t.Errorf("refused with %+v, %v", r, err)
	}
}

// Where other users are named the socket's directory must let them through; without any, it stays closed.
func TestSocketOfUsers(t *testing.T) {
	shut := filepath.Join(openDir(t), "shut")
	if err := os.Mkdir(shut, 0o700); err != nil {
		t.Fatal(err)
	}
	if s, err := Listen(Config{Path: filepath.Join(shut, "ranks.sock"), Users: []int{61001}}); err == nil {
		s.Close()
		t.Error("a socket that its users can't reach")
	} else if !strings.Contains(err.Error(), "chmod 0755 "+shut) {
		t.Error(err)
	}
	for users, want := range map[int]os.FileMode{0: 0o600, 1: 0o666} {
		path := filepath.Join(openDir(t), "run", "ranks.sock")
		s := serve(t, Config{Path: path, Users: make([]int, users)})
		st, err := os.Stat(s.cfg.Path)
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%d users: %v, %v", users, st.Mode(), err)
		}
	}
}
