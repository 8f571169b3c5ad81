package shm

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/otheruser"
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
	root := os.Geteuid() == 0
	if !root {
		k.uid = otheruser.Nobody // to whom this process is another user
	}
	ended := make(chan error)
	go func() { ended <- k.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	ask := func(foreign bool) (int, error) {
		c := dialKeeperSocket(t, socket, foreign)
		if err := sendKeeper(c, keeperMessage{typ: keepStart}, nil); err != nil {
			return 0, err
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // only a failing test waits it out
		return c.Read(make([]byte, 1024))
	}
	if n, err := ask(root); n > 0 {
		t.Errorf("another user is answered with %d bytes", n)
	} else if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		t.Error("another user's connection is kept")
	}
	if root {
		if n, err := ask(false); n == 0 {
			t.Errorf("its own user is not answered: %v", err)
		}
	}
}

func dialKeeperSocket(t *testing.T, socket string, foreign bool) *net.UnixConn {
	t.Helper()
	if foreign {
		return otheruser.Dial(t, socket, otheruser.Nobody)
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Of what another user sends the keeper reads nothing, and takes no descriptor: the kernel has named the user before.
func TestKeeperReadsNothingOfAnotherUser(t *testing.T) {
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
	t.Cleanup(func() { _ = k.ln.Close() })
	for path, mode := range map[string]os.FileMode{dir: 0o711, socket: 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	root := os.Geteuid() == 0
	if !root {
		k.uid = otheruser.Nobody // to whom this process is another user
	}
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sent := []keeperMessage{{typ: keepStart}, {typ: keepPut, key: "theirs"}, {typ: keepAll}}
	for i := range 4 * maxKeeperConns { // it does not run: the test serves each in its place, and keeps its end open
		theirs := dialKeeperSocket(t, socket, root)
		for _, m := range sent {
			var f *os.File
			if m.typ == keepPut {
				f = file
			}
			if err := sendKeeper(theirs, m, f); err != nil {
				t.Fatal(err)
			}
		}
		if err := theirs.CloseWrite(); err != nil { // who reads it ends there
			t.Fatal(err)
		}
		ours, err := k.accept()
		if err != nil {
			t.Fatal(err)
		}
		k.serve(ours)
		if len(k.held) > 0 || k.current != nil || k.session != 0 {
			t.Fatalf("connection %d: the keeper holds %d descriptors for session %d", i, len(k.held), k.session)
		}
		_ = ours.SetReadDeadline(time.Now().Add(20 * time.Second)) // only a failing test waits it out
		for _, want := range sent {
			m, f, err := receiveKeeper(ours)
			if err != nil || m.typ != want.typ || (f != nil) != (want.typ == keepPut) {
				t.Fatalf("connection %d: of message %d the keeper has read something: %v, %v", i, want.typ, m, err)
			}
			if f != nil {
				_ = f.Close()
			}
		}
		_, _ = ours.Close(), theirs.Close()
	}
}
