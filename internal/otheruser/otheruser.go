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

	"golang.org/x/sys/unix"
)

// Nobody is a user that no test runs as.
const Nobody = 65534

// Dial connects as that user: credentials are a thread's, as far as the kernel goes. The test is skipped where it may not change them.
func Dial(t *testing.T, socket string, uid uintptr) *net.UnixConn {
	t.Helper()
	const same = ^uintptr(0)
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, same, uid, same); e != 0 {
		t.Skipf("this root can't be another user: %v", e)
	}
	defer func() {
		if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, same, 0, same); e != 0 {
			panic(e) // the thread would go on as another user
		}
	}()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatalf("connect as user %d: %v", uid, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
