package shm

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The keeper has every rank's memory: who runs as another user gets none of it, whatever the socket's mode allows.
func TestKeeperServesNoOtherUser(t *testing.T) {
	dir, err := os.MkdirTemp("", "rk") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "k.sock")
	k, err := ListenKeeper(socket)
	if err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o711, socket: 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	const other = 65534
	root := os.Geteuid() == 0
	if !root {
		k.uid = other // to whom this process is another user
	}
	ended := make(chan error)
	go func() { ended <- k.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	ask := func(foreign bool) (int, error) {
		c := connectAs(t, socket, other, foreign)
		defer c.Close()
		if err := sendKeeper(c, keeperMessage{typ: keepStart}, nil); err != nil {
			return 0, err
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // only a failing test waits it out
		return c.Read(make([]byte, 1024))
	}
	if n, err := ask(root); n > 0 {
		t.Errorf("another user is answered with %d bytes", n)
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("another user's connection is kept")
	}
	if root {
		if n, err := ask(false); n == 0 {
			t.Errorf("its own user is not answered: %v", err)
		}
	}
}

// connectAs connects, as another user where asked: credentials are a thread's, as far as the kernel goes.
func connectAs(t *testing.T, socket string, uid uintptr, foreign bool) *net.UnixConn {
	t.Helper()
	const same = ^uintptr(0)
	if foreign {
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
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
