package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWay: where others may put another folder in the place of one of this user's, no path below is taken, and nothing is made there. A sticky folder keeps
// each one's apart.
func TestWay(t *testing.T) {
	t.Parallel()
	const stranger, group = 61009, 61008
	base := t.TempDir()
	acl := []byte{2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 0x51, 0xee, 0, 0, 4, 0, 0, 0, 255, 255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255}
	for i, tc := range []struct {
		what  string
		mode  fs.FileMode
		owner int // 0: this one
		group int // 0: this one's
		list  []byte
		want  string // empty: taken
	}{
		{what: "own", mode: 0o700},
		{what: "all may read", mode: 0o755},
		{what: "sticky, as /tmp", mode: 0o777 | fs.ModeSticky},
		{what: "all may write", mode: 0o777, want: "can be written by everybody, with mode 0777"},
		{what: "all but the group may write", mode: 0o757, want: "can be written by everybody"},
		{what: "a private group", mode: 0o775},
		{what: "a private group, with a list", mode: 0o775, list: acl, want: "can be written by group"},
		{what: "a group of others", mode: 0o775, group: group, want: "can be written by group 61008, with mode 0775"},
		{what: "a sticky one of a group", mode: 0o775 | fs.ModeSticky, group: group},
		{what: "a group that may only read", mode: 0o755, group: group},
		{what: "a stranger's", mode: 0o755, owner: stranger, want: "belongs to user 61009"},
		{what: "a stranger's sticky one", mode: 0o777 | fs.ModeSticky, owner: stranger, want: "belongs to user 61009"},
	} {
		dir := filepath.Join(base, fmt.Sprint(i))
		if os.Geteuid() != 0 && (tc.owner != 0 || tc.group != 0) {
			continue // only root gives a folder away
		}
		gid := os.Getegid()
		if tc.group != 0 {
			gid = tc.group
		} else if !ownGroup(uint32(gid)) && tc.mode&0o020 != 0 && tc.want == "" && tc.mode&fs.ModeSticky == 0 {
			continue // this user has no group of its own
		}
		uid := os.Geteuid()
		if tc.owner != 0 {
			uid = tc.owner
		}
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(dir, "there"), 0o700), os.Chown(dir, uid, gid), os.Chmod(dir, tc.mode)); err != nil {
			t.Fatal(err)
		}
		if tc.list != nil {
			if err := unix.Setxattr(dir, "system.posix_acl_access", tc.list, 0); err != nil {
				t.Logf("%s: %v", tc.what, err) // a file system without lists
				continue
			}
		}
		for _, below := range []string{"new", "sub/new", "there", "there/new"} {
			path := filepath.Join(dir, below)
			root, err := Open(path, true)
			if root != nil {
				_ = root.Close()
			}
			_, st := os.Stat(path)
			folder := Folder(path, true) // of a configuration, whose author chose the place
			switch {
			case folder != nil && !strings.Contains(folder.Error(), path):
				t.Errorf("%s: %s, as a configuration names it: %v", tc.what, below, folder)
			case tc.want == "" && (err != nil || st != nil):
				t.Errorf("%s: %s: %v, %v", tc.what, below, err, st)
			case tc.want == "":
			case err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), dir):
				t.Errorf("%s: %s: %v, want %q", tc.what, below, err, tc.want)
			case below != "there" && st == nil:
				t.Errorf("%s: %s was made", tc.what, below)
			}
		}
	}
}

// TestLinksOnTheWay: a way goes by links of trusted users.
func TestLinksOnTheWay(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	in := func(name string) string { return filepath.Join(base, name) }
	if err := errors.Join(os.Mkdir(in("a"), 0o700), os.Mkdir(in("a/state"), 0o700), os.Mkdir(in("open"), 0o700), os.Mkdir(in("open/state"), 0o700), os.Chmod(in("open"), 0o777),
		os.Symlink(in("a"), in("absolute")), os.Symlink("a/../a/.", in("relative")), os.Symlink("open", in("toopen")), os.Symlink("loop", in("loop")), os.Symlink("a/state", in("last")),
		os.Symlink("../a", in("open/back")), os.Symlink("a", in("theirs"))); err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{"absolute/state": "", "relative/state": "", "last": "", "toopen/state": "", "open/back/state": "", "loop/state": "too many", "theirs/state": ""}
	if os.Lchown(in("theirs"), 61009, -1) == nil && os.Geteuid() == 0 {
		wants["theirs/state"] = "is a link of user 61009"
	}
	for path, want := range wants {
		err := Folder(in(path), false)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	for _, path := range []string{"toopen/state", "open/back/state"} {
		if root, err := Open(in(path), false); err == nil || !strings.Contains(err.Error(), "by everybody") {
			t.Errorf("%s: %v, %v", path, root, err)
		}
	}
	if root, err := Open(in("last"), false); err == nil || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("a folder of state that is a link: %v, %v", root, err)
	}
}

func TestAlone(t *testing.T) {
	t.Parallel()
	const users = "root:x:0:0::/:\nalice:x:1001:1005::/:\nbob:x:1002:100::/:\ncarol:x:1003:1003::/:\ndave:x:1004:1003::/:\nshort\n"
	const groups = "root:x:0:\nusers:x:100:\nalice:x:1005:\nbob:x:1002:bob,alice\nlab:x:1006:alice\n1007:x:1007:alice\nshort\n"
	for _, tc := range []struct {
		uid, gid uint32
		want     bool
	}{
		{1001, 1005, true},  // by its name
		{1002, 1002, false}, // alice is in it
		{1002, 100, false},  // whoever a directory service puts in it
		{1001, 1006, false}, // not hers, although the file shows nobody else
		{1003, 1003, false}, // dave's first group
		{1002, 1005, false}, // alice's own
		{2000, 2000, true},  // of a directory service, or a container's
		{1007, 1007, false}, // so, and alice is in it
		{2000, 2001, false},
	} {
		if got := alone(users, groups, tc.uid, tc.gid); got != tc.want {
			t.Errorf("user %d in group %d: %v", tc.uid, tc.gid, got)
		}
	}
}
