// Package owner says whose word counts on a host. A path says nothing by itself: where others may write, anybody puts something there. So a folder of
// state, a credential and a process that answers on a socket are believed only where they belong to root, to the user of this process, or to one whom
// somebody of these names.
package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Trusted tells whether what belongs to a user is as good as one's own: root may change everything anyway.
func Trusted(uid uint32) bool { return uid == 0 || int64(uid) == int64(os.Geteuid()) }

// Check refuses what belongs to another user than the one of this process or root: whoever owns a file decides what is in it, and whoever owns a
// directory which files are.
func Check(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return check(path, st.Uid)
}

func check(path string, uid uint32) error {
	if !Trusted(uid) {
		return fmt.Errorf("%s belongs to user %d, and this process runs as user %d: run it as that user, or have the file made by this one (chown)", path, uid, os.Geteuid())
	}
	return nil
}

// Open opens a folder of state, and all that is done in it goes by what it returns: the folder that was looked at, whatever lies at its path later. A
// link, a folder of another user (Check), one that others may write, and one on whose way others may put another one are refused. Where nothing is the
// error is [fs.ErrNotExist], or with make the folder is made, 0700, as are those above it.
func Open(dir string, make bool) (*os.Root, error) {
	fd, err := walk(dir, true, make)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("open folder %s: %w", dir, err)
	}
	if err := checkFolder(dir, fd); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// Folder is Open for a folder that a configuration names: who wrote that has chosen the place, so the way to it is not judged. It may lie in a volume that
// all may write, as those of pods are, and be a link where whoever made that is trusted.
func Folder(dir string, make bool) error {
	fd, err := walk(dir, false, make)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return checkFolder(dir, fd)
}

func checkFolder(dir string, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if err := check(dir, st.Uid); err != nil {
		return err
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("%s can be written by others, with mode %04o, and says whom this process trusts: chmod go-w %s, or name one that this user alone may write", dir, st.Mode&0o7777, dir)
	}
	return nil
}
