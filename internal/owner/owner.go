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
	if ok && !Trusted(st.Uid) {
		return fmt.Errorf("%s belongs to user %d, and this process runs as user %d: run it as that user, or have the file made by this one (chown)", path, st.Uid, os.Geteuid())
	}
	return nil
}

// Open opens a folder of state, and all that is done in it goes by what it returns: the folder that was looked at, whatever lies at its path later. A
// link, a folder of another user (Check) and one that others may write are refused. Where nothing is the error is [fs.ErrNotExist].
func Open(dir string) (*os.Root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		if st, err := os.Lstat(dir); err == nil && st.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%s is a link: whoever made it chose the folder; name the folder itself, or remove the link", dir)
		}
		return nil, fmt.Errorf("%s is no folder: remove it, or name another place", dir)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("open folder %s: %w", dir, err)
	}
	st, err := root.Stat(".")
	if err == nil {
		err = checkFolder(dir, st)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// Folder is Open for a folder that a configuration names, which may be a link where whoever made that is trusted.
func Folder(dir string) error {
	link, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if err := Check(dir, link); err != nil {
		return err
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	return checkFolder(dir, st)
}

func checkFolder(dir string, st fs.FileInfo) error {
	if err := Check(dir, st); err != nil {
		return err
	}
	if st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s can be written by others, with mode %04o, and says whom this process trusts: chmod go-w %s, or name a folder below it, which is made then", dir, st.Mode().Perm(), dir)
	}
	return nil
}
