package unixsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MaxPath is sun_path's size less its NUL.
const MaxPath = 107

// ErrInUse says that somebody answers on the socket.
var ErrInUse = errors.New("is in use by a running process")

// Listen makes a socket of network "unix" or "unixpacket": 0600, in a directory that is made 0700 if it is not there. A socket on
// which nobody answers is left over from a process that was killed and is replaced. Errors begin with the path and end with a
// remedy, but for ErrInUse, whose remedy is the caller's to name.
func Listen(network, path string) (*net.UnixListener, error) {
	if path == "" || len(path) > MaxPath {
		return nil, fmt.Errorf("socket %q is %d bytes long, the kernel takes 1 to %d: choose a shorter path", path, len(path), MaxPath)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("socket %s: %w: make the directory, or choose one that this user can write", path, err)
	}
	d, err := OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	// Two that start at once must not both take the old socket away; the lock ends with d.
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("socket %s: lock its directory: %w", path, err)
	}
	addr := &net.UnixAddr{Name: path, Net: network}
	c, err := net.DialUnix(network, nil, addr)
	switch {
	case err == nil:
		_ = c.Close()
		return nil, fmt.Errorf("socket %s %w", path, ErrInUse)
	case errors.Is(err, unix.EAGAIN): // a full backlog is somebody's
		return nil, fmt.Errorf("socket %s %w", path, ErrInUse)
	case errors.Is(err, unix.ECONNREFUSED):
		if st, err := os.Lstat(path); err != nil || st.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("socket %s: something else lies there: move it, or choose another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("socket %s is left over and can't be removed: %w", path, err)
		}
	case !errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("socket %s: %w: something else lies there: move it, or choose another path", path, err)
	}
	ln, err := net.ListenUnix(network, addr)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w: choose a directory that this user can write", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return ln, nil
}

// OpenDir opens the directory of a socket, in which nobody else may put another one.
func OpenDir(path string) (*os.File, error) {
	dir := filepath.Dir(path)
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w: choose a directory that this user can read", path, err)
	}
	if st, err := d.Stat(); err != nil || st.Mode().Perm()&0o002 != 0 && st.Mode()&fs.ModeSticky == 0 {
		return nil, errors.Join(fmt.Errorf("socket %s: everybody can write its directory and put another socket there: chmod o-w %s", path, dir), err, d.Close())
	}
	return d, nil
}
