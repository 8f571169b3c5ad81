package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks on a way is the kernel's bound.
const maxLinks = 40

// walk opens a folder (O_PATH) by all folders on its way, each looked at before what is in it is opened or made: whoever may change one of them says where
// the path leads, now and later. Of a strict one each is judged, and the folder itself may be no link; of another one whoever made a link on the way.
func walk(dir string, strict, make bool) (int, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return -1, err
	}
	at, fd, err := rootFolder()
	names, links := split(path), 0
	for err == nil && len(names) > 0 {
		name := names[0]
		names = names[1:]
		below := filepath.Join(at, name)
		var next int
		var st unix.Stat_t
		if strict {
			if err = checkWay(at, fd); err != nil {
				break
			}
		}
		if next, st, err = enter(fd, name, make); err != nil {
			err = &fs.PathError{Op: "open", Path: below, Err: err}
			break
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			unix.Close(fd)
			at, fd = below, next
		case unix.S_IFLNK:
			var target string
			if target, err = follow(next, below, st.Uid); err != nil {
				break
			}
			if links++; links > maxLinks {
				err = &fs.PathError{Op: "open", Path: below, Err: unix.ELOOP}
			} else if len(names) == 0 && strict {
				err = fmt.Errorf("%s is a link: whoever made it chose the folder; name the folder itself, or remove the link", dir)
			}
			names = append(split(target), names...)
			if err == nil && filepath.IsAbs(target) {
				unix.Close(fd)
				at, fd, err = rootFolder()
			}
		default:
			unix.Close(next)
			err = fmt.Errorf("%s is no folder: remove it, or name another place", below)
		}
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return -1, err
	}
	return fd, nil
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

func rootFolder() (at string, fd int, err error) {
	fd, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return "/", fd, err
}

// enter opens what has a name in a folder, itself where it is a link. make: a folder, where nothing is.
func enter(in int, name string, make bool) (fd int, st unix.Stat_t, err error) {
	const how = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err = unix.Openat(in, name, how, 0)
	if make && errors.Is(err, unix.ENOENT) {
		if err = unix.Mkdirat(in, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, st, err
		}
		fd, err = unix.Openat(in, name, how, 0)
	}
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// follow reads a link that is open, and closes it.
func follow(fd int, path string, uid uint32) (target string, err error) {
	defer unix.Close(fd)
	if !Trusted(uid) && !unnumbered(uid) {
		return "", fmt.Errorf("%s is a link of user %d, who may have it lead elsewhere, and this process runs as user %d", path, uid, os.Geteuid())
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: path, Err: err}
	}
	return string(b[:n]), nil
}

// checkWay refuses a folder in which others may put something else in the place of what this user has there. A sticky one, as /tmp, leaves each what is
// his, and what is entered next must be a trusted user's.
func checkWay(path string, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if !Trusted(st.Uid) && !unnumbered(st.Uid) {
		return fmt.Errorf("%s belongs to user %d, who may put another folder in the place of what this process, of user %d, has below it: run it as that user, or name another place", path, st.Uid, os.Geteuid())
	}
	if st.Mode&unix.S_ISVTX != 0 || st.Mode&0o002 == 0 && (st.Mode&0o020 == 0 || ownGroup(st.Gid) && !listed(fd)) {
		return nil
	}
	who := "everybody"
	if st.Mode&0o002 == 0 {
		who = fmt.Sprintf("group %d", st.Gid)
	}
	return fmt.Errorf("%s can be written by %s, with mode %04o, who may put another folder in the place of what is below it: name another place, or keep what is each user's apart (chmod +t %s)", path, who, st.Mode&0o7777, path)
}

// listed tells whether a folder has an access list: its group's bits are then what anybody may on that list.
func listed(fd int) bool {
	_, err := unix.Getxattr(fmt.Sprintf("/proc/self/fd/%d", fd), "system.posix_acl_access", nil)
	return err == nil
}

// unnumbered tells whether a user has no number in this process's user namespace, as the host's root has none in most: on a way he counts as that.
func unnumbered(uid uint32) bool {
	if uid != OverflowUID() {
		return false
	}
	b, err := os.ReadFile("/proc/self/uid_map")
	f := strings.Fields(string(b))
	return err == nil && (len(f) != 3 || f[2] != strconv.FormatUint(1<<32-1, 10)) // the host's own has all numbers
}

// OverflowUID is what the kernel shows for a user that has no number in this user namespace.
func OverflowUID() uint32 {
	b, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	n, bad := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil || bad != nil {
		return 65534
	}
	return uint32(n)
}
