// Package otheruser lets a test that runs as root meet a socket as another user, which the kernel vouches for.
//
// It is for tests alone and must not import any other package of this module.
package otheruser

import (
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Nobody is a user that no test runs as.
const Nobody = 65534

// Dial connects as that user. The test is skipped where it may not be another one.
func Dial(t *testing.T, socket string, uid uintptr) (c *net.UnixConn) {
	t.Helper()
	as(t, uid, same, func() (err error) {
		c, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Listen is a socket that user listens on. The test is skipped where it may not be another one.
func Listen(t *testing.T, socket string, uid uintptr) (l *net.UnixListener) {
	t.Helper()
	as(t, uid, same, func() (err error) {
		l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Try does something as another user with one group. The test is skipped where it may not be another one.
func Try(t *testing.T, uid, gid uintptr, do func() error) (err error) {
	t.Helper()
	as(t, uid, gid, func() error { err = do(); return nil })
	return err
}

const same = ^uintptr(0) // a user or group that stays

// as does something as another user, and in another group instead of all of this process's: credentials are a thread's, as far as the kernel goes.
func as(t *testing.T, uid, gid uintptr, do func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	had, err := unix.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if gid != same {
		setGroups(t, nil)
		defer setGroups(t, had)
		if _, _, e := syscall.RawSyscall(unix.SYS_SETRESGID, same, gid, same); e != 0 {
			t.Skipf("this root can't be in another group: %v", e)
		}
		defer syscall.RawSyscall(unix.SYS_SETRESGID, same, uintptr(os.Getgid()), same) //nolint:errcheck // root can
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, same, uid, same); e != 0 {
		t.Skipf("this root can't be another user: %v", e)
	}
	err = do()
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, same, 0, same); e != 0 {
		panic(e) // the thread would go on as another user
	}
	if err != nil {
		t.Fatalf("as user %d: %v", uid, err)
	}
}

// setGroups sets this thread's, which syscall.Setgroups sets for all of them.
func setGroups(t *testing.T, list []int) {
	ids := make([]uint32, len(list)+1)
	for i, g := range list {
		ids[i] = uint32(g)
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(list)), uintptr(unsafe.Pointer(&ids[0])), 0); e != 0 {
		t.Fatalf("groups of this thread: %v", e)
	}
}
