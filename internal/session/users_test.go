package session

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/otheruser"
	"github.com/replicad/replicad/internal/unixsock"
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
	group := os.Getegid()
	if os.Geteuid() == 0 {
		group = 61000
	}
	for _, tc := range []struct {
		users, group int
		want         os.FileMode
	}{{0, Everybody, 0o600}, {0, group, 0o600}, {1, Everybody, 0o666}, {1, group, 0o660}} {
		path := filepath.Join(openDir(t), "run", "ranks.sock")
		s := serve(t, Config{Path: path, Users: make([]int, tc.users), Group: tc.group})
		st, err := os.Stat(s.cfg.Path)
		if err != nil || st.Mode().Perm() != tc.want {
			t.Errorf("%+v: %v, %v", tc, st.Mode(), err)
		}
		if gid := int(st.Sys().(*syscall.Stat_t).Gid); tc.want == 0o660 && gid != group {
			t.Errorf("%+v: group %d", tc, gid)
		}
	}
}

// The kernel keeps a stranger from the queue of a socket that has a group, and says so to who would connect.
func TestAStrangerDoesNotReachTheQueue(t *testing.T) {
	const alice, mallory, theirs = 61001, 61002, 61000
	s := serve(t, Config{Path: filepath.Join(openDir(t), "run", "ranks.sock"), Users: []int{alice}, Group: theirs})
	if err := otheruser.Try(t, mallory, 61002, func() error { _, err := unixsock.Dial(t.Context(), "unixpacket", s.cfg.Path, 0); return err }); err == nil || !strings.Contains(err.Error(), "rank_users") {
		t.Errorf("a stranger: %v", err)
	}
	if err := otheruser.Try(t, alice, theirs, func() error {
		c, err := unixsock.Dial(t.Context(), "unixpacket", s.cfg.Path)
		if err == nil {
			err = c.Close()
		}
		return err
	}); err != nil {
		t.Errorf("one of the group: %v", err)
	}
}

// One user takes no more than its own share of the sessions, and those of it that say nothing make room for its own alone.
func TestAUserHasAShareOfTheSessions(t *testing.T) {
	const alice, bob = 61001, 61002
	s := serve(t, Config{Path: filepath.Join(openDir(t), "run", "ranks.sock"), Users: []int{alice, bob}, MaxPeers: 5, PerUser: 3, HelloWait: time.Hour})
	says := func(user int) (end net.Conn, p Peer) {
		t.Helper()
		c := otheruser.Dial(t, s.cfg.Path, uintptr(user))
		hello := wire.AppendRank(nil, wire.RankHeader{Type: wire.MHello, Request: 1}, wire.Hello{ABI: wire.RankABI, World: 2, Job: "job"}.Append(nil))
		if _, err := c.Write(hello); err != nil {
			t.Fatal(err)
		}
		return c, next[Hello](t, s).Peer
	}
	bobs := otheruser.Dial(t, s.cfg.Path, bob) // silent: alice's connections do not cost it its place
	ended := func(c net.Conn) (code int32, text string) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, wire.MaxRankMessage)
		n, err := c.Read(b)
		if err != nil || n == 0 {
			return 0, "hung up"
		}
		_, body, err := wire.ParseRank(b[:n])
		r, err2 := wire.ParseRefused(body)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		return r.Code, r.Text
	}
	silent := otheruser.Dial(t, s.cfg.Path, alice)
	first, _ := says(alice)
	says(alice)
	says(alice)
	if _, text := ended(silent); text != "hung up" {
		t.Errorf("alice's silent connection makes no room: %s", text)
	}
	code, text := ended(otheruser.Dial(t, s.cfg.Path, alice))
	for _, part := range []string{"user 61001 has 3 sessions", "may have 3", "per_user.sessions"} {
		if code != wire.CodeAgain || !strings.Contains(text, part) {
			t.Errorf("a fourth session of alice's: code %d, %s: want %s", code, text, part)
		}
	}
	if ev := next[TurnedAway](t, s); ev.UID != alice || !strings.Contains(ev.Why, "per_user.sessions") {
		t.Errorf("the daemon hears %+v", ev)
	}
	if got := s.Users(); got[alice] != 3 || got[bob] != 1 {
		t.Errorf("sessions by user: %v", got)
	}
	hello := wire.AppendRank(nil, wire.RankHeader{Type: wire.MHello, Request: 1}, wire.Hello{ABI: wire.RankABI, World: 2, Job: "job"}.Append(nil))
	if _, err := bobs.Write(hello); err != nil {
		t.Errorf("bob's was hung up on: %v", err)
	}
	if p := next[Hello](t, s).Peer; p.UID() != bob {
		t.Errorf("user %d", p.UID())
	}
	_ = first.Close() // a rank dies, and its replacement, which was told to come again, finds the place
	next[Gone](t, s)
	says(alice)
	if code, text := ended(otheruser.Dial(t, s.cfg.Path, alice)); code != wire.CodeAgain || !strings.Contains(text, "has 3 sessions") {
		t.Errorf("and nobody else of hers does: code %d, %s", code, text)
	}
}
