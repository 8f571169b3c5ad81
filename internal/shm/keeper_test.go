package shm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/replica"
)

// startProcess runs this test binary as a helper and reads its output.
func startProcess(t *testing.T, env, socket string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env+"="+socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewReader(out)
}

// runTestKeeper says when it can be dialled.
func runTestKeeper(ctx context.Context, socket string) error {
	k, err := ListenKeeper(socket)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	return k.Run(ctx)
}

// runTestDaemon is a daemon with one arena that is full of work when it is killed: it never returns.
func runTestDaemon(ctx context.Context, socket string) error {
	k, err := DialKeeper(ctx, socket)
	if err != nil {
		return err
	}
	g, err := replica.NewGeometry(testRegions())
	if err != nil {
		return err
	}
	a, err := Create(Spec{Cluster: testCluster, Era: 1, Job: testJob, Rank: 2, Geometry: g, ChunkBytes: testChunk})
	if err != nil {
		return err
	}
	if err := k.Put("job/2", a.File()); err != nil {
		return err
	}
	a.RaiseFence(4)
	for _, p := range []Place{{Slot, 0}, {Slot, 1}} {
		b, m := part(a, p, 3)
		s, err := a.Stage(p, m)
		if err != nil {
			return err
		}
		for i := range m.Chunks {
			if p.Index == 1 && i == 2 {
				break // it is killed in the middle of this one
			}
			if err := s.Put(i, chunkOf(m, b, i)); err != nil {
				return err
			}
		}
		if p.Index == 0 {
			if err := s.Seal(); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%d %d\n", k.Incarnation(), k.Session())
	<-ctx.Done()
	return ctx.Err()
}

// inProcessKeeper runs a keeper until the test ends.
func inProcessKeeper(t *testing.T, change ...func(*KeeperServer)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "keeper.sock")
	ctx, cancel := context.WithCancel(context.Background())
	k, err := ListenKeeper(socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(k)
	}
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// The arenas of a daemon that is killed outright come back from the keeper, warm, to the next one.
func TestAdoptAfterDaemonWasKilled(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "keeper.sock")
	keeperCmd, ready := startProcess(t, envKeeper, socket)
	if line, err := ready.ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	daemon, out := startProcess(t, envDaemon, socket)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var inc replica.NodeIncarnation
	var session replica.Session
	if _, err := fmt.Sscan(line, &inc, &session); err != nil || inc == 0 || session != 1 {
		t.Fatalf("%q: %v", line, err)
	}
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait()

	k, err := DialKeeper(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if k.Incarnation() != inc || k.Session() != 2 {
		t.Errorf("incarnation %d session %d, want %d and 2", k.Incarnation(), k.Session(), inc)
	}
	files, err := k.All()
	if err != nil || len(files) != 1 || files["job/2"] == nil {
		t.Fatalf("%v: %v", files, err)
	}
	a, err := Adopt(files["job/2"])
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.Fence() != 4 || a.Verify(Place{Slot, 0}) != nil || a.Word(Place{Slot, 1}).State() != replica.SlotCopying {
		t.Errorf("fence %d, slot 0 %v, slot 1 %v", a.Fence(), a.Verify(Place{Slot, 0}), a.Word(Place{Slot, 1}).State())
	}
	// The staging that died with the daemon is torn and begun again; what had arrived is not fetched again.
	p := Place{Slot, 1}
	if !a.Tear(p) || !a.Free(p) {
		t.Fatal("can't free the torn staging")
	}
	_, m := part(a, p, 3)
	s, err := a.Stage(p, m)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Have(0) || !s.Have(1) {
		t.Error("chunks that had arrived are gone")
	}
	s.Abort()
	if err := keeperCmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := keeperCmd.Wait(); err != nil {
		t.Errorf("keeper ended with %v", err)
	}
}

func TestKeeperPutDropAll(t *testing.T) {
	socket := inProcessKeeper(t)
	k, err := DialKeeper(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	file := func(text string) *os.File {
		f, err := NewMemfd("x")
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	for _, kv := range [][2]string{{"a", "1"}, {"b", "2"}, {"a", "3"}, {"c", "4"}} {
		f := file(kv[1])
		if err := k.Put(kv[0], f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // the keeper's own is unharmed
	}
	if err := k.Drop("b"); err != nil {
		t.Fatal(err)
	}
	if err := k.Drop("never"); err != nil {
		t.Error(err)
	}
	files, err := k.All()
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for key, want := range map[string]string{"a": "3", "c": "4"} {
		b := make([]byte, 1)
		if _, err := files[key].ReadAt(b, 0); err != nil || string(b) != want {
			t.Errorf("%s: %q, want %q: %v", key, b, want, err)
		}
		_ = files[key].Close()
	}
	for _, key := range []string{"", strings.Repeat("k", MaxKey+1), "a\x00b"} {
		if err := k.Put(key, file("x")); err == nil {
			t.Errorf("key %q was taken", key)
		}
	}
	if _, err := DialKeeper(context.Background(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("dialled nobody")
	}
	if err := RunKeeper(context.Background(), socket); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("a second keeper on the socket: %v", err)
	}
}

// A new daemon takes over; one that still runs (stopped, or on its way out) can't change anything any more.
func TestKeeperServesTheNewestDaemon(t *testing.T) {
	socket := inProcessKeeper(t)
	old, err := DialKeeper(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	young, err := DialKeeper(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer young.Close()
	if young.Session() != old.Session()+1 {
		t.Errorf("sessions %d and %d", old.Session(), young.Session())
	}
	if err := old.Drop("a"); err == nil {
		t.Error("the superseded daemon was served")
	}
	if err := young.Drop("a"); err != nil {
		t.Error(err)
	}
}

// A daemon that asks nothing of its keeper learns all the same that it has gone: killed, or taken over by another daemon.
func TestKeeperDone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "keeper.sock")
	cmd, ready := startProcess(t, envKeeper, socket)
	if line, err := ready.ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	dial := func() *Keeper {
		k, err := DialKeeper(context.Background(), socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(k.Close)
		return k
	}
	gone := func(what string, k *Keeper) {
		select {
		case <-k.Done():
		case <-time.After(20 * time.Second):
			t.Fatalf("%s is not noticed", what)
		}
	}
	stays := func(what string, k *Keeper) {
		if err := k.Drop("none"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-k.Done():
			t.Fatalf("%s is taken for the keeper's end", what)
		default:
		}
	}
	old := dial()
	stays("nothing", old)
	young := dial()
	gone("a newer daemon", old)
	for range 100 {
		stays("an answer", young)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gone("the keeper's death", young)
	if _, err := young.All(); err == nil {
		t.Error("a dead keeper answers")
	}
	closed, err := DialKeeper(context.Background(), inProcessKeeper(t))
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	gone("the close", closed)
}

// Whoever breaks the keeper's rules is hung up on, and what the keeper holds stays.
func TestKeeperHangsUpOnNonsense(t *testing.T) {
	socket := inProcessKeeper(t)
	f, err := NewMemfd("x")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	good := keeperMessage{typ: keepStart}.marshal()
	for what, send := range map[string]func(c *net.UnixConn) error{
		"short":            func(c *net.UnixConn) error { _, err := c.Write(good[:100]); return err },
		"long":             func(c *net.UnixConn) error { _, err := c.Write(append(bytes.Clone(good), 0)); return err },
		"magic":            func(c *net.UnixConn) error { b := bytes.Clone(good); b[0]++; _, err := c.Write(b); return err },
		"before start":     func(c *net.UnixConn) error { return sendKeeper(c, keeperMessage{typ: keepAll}, nil) },
		"put before start": func(c *net.UnixConn) error { return sendKeeper(c, keeperMessage{typ: keepPut, key: "a"}, f) },
		"unwanted file":    func(c *net.UnixConn) error { return sendKeeper(c, keeperMessage{typ: keepStart}, f) },
		"two files": func(c *net.UnixConn) error {
			_, _, err := c.WriteMsgUnix(good, unix.UnixRights(int(f.Fd()), int(f.Fd())), nil)
			return err
		},
	} {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if err := send(c); err != nil {
			t.Fatal(what, err)
		}
		if n, err := c.Read(make([]byte, keeperBytes)); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
			t.Errorf("%s: answered with %d bytes, %v", what, n, err)
		}
		_ = c.Close()
	}
}

// Connections that say nothing take all seats, and lose them: a daemon that starts then is served.
func TestKeeperHangsUpOnSilence(t *testing.T) {
	socket := inProcessKeeper(t, func(k *KeeperServer) { k.firstWait = 50 * time.Millisecond })
	for range maxKeeperConns {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for end := time.Now().Add(30 * time.Second); ; {
		k, err := DialKeeper(t.Context(), socket)
		if err == nil {
			k.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// A keeper that has no descriptor left for a connection holds what it holds, and serves again once it has one. It used to end, and all
// memory of the node with it.
func TestKeeperOutlivesWantOfDescriptors(t *testing.T) {
	socket := inProcessKeeper(t, func(k *KeeperServer) {
		accept, tries := k.accept, 0
		k.accept = func() (*net.UnixConn, error) {
			if tries++; tries < 3 {
				return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)}
			}
			return accept()
		}
	})
	k, err := DialKeeper(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
}

func FuzzKeeperMessage(f *testing.F) {
	f.Add(keeperMessage{typ: keepPut, key: "job/2"}.marshal())
	f.Add(keeperMessage{typ: keepDone, incarnation: 5, session: 6, text: "no"}.marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseKeeperMessage(b)
		if err != nil {
			return
		}
		if got := m.marshal(); !bytes.Equal(got, b) {
			t.Fatalf("%x encodes to %x", b, got)
		}
	})
}
