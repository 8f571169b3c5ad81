package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/keeper"
	"github.com/replicad/replicad/internal/launch"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// answeringDaemon is a daemon's socket at which one launcher says hello, and is told text and the code 7 once done is closed.
func answeringDaemon(t *testing.T, text string, done <-chan struct{}) (socket string, hello <-chan wire.RunHello) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	said := make(chan wire.RunHello, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		buf := make([]byte, wire.MaxRankMessage)
		n, err := conn.Read(buf)
		if err != nil {
			t.Error(err)
		}
		_, body, err := wire.ParseRank(buf[:n])
		if err != nil {
			t.Error(err)
		}
		h, err := wire.ParseRunHello(body)
		if err != nil {
			t.Error(err)
		}
		said <- h
		tell := func(typ uint16, body []byte) {
			if _, err := conn.Write(wire.AppendRank(nil, wire.RankHeader{Type: typ}, body)); err != nil {
				t.Error(err)
			}
		}
		tell(wire.MRunOK, wire.Welcome{ABI: wire.RankABI}.Append(nil))
		<-done
		tell(wire.MRunDone, wire.Refused{Code: 7, Text: text}.Append(nil))
		_, _ = conn.Read(buf) // until the launcher leaves
	}()
	return socket, said
}

// With --nohup a launcher lives on when its terminal is closed, and what it says from then on is in a file.
func TestRunWithoutATerminal(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	socket, hello := answeringDaemon(t, "do not requeue", done)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), self, "run", "--nohup", "--socket", socket, "--job", "Lm-8B", "--world", "1", "--", "true")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CMD_TEST=replicad", "XDG_STATE_HOME="+dir)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hello:
	case <-t.Context().Done():
		t.Fatalf("no hello came:\n%s", &said)
	}
	for range 2 {
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	_ = cmd.Wait() // its code is looked at
	file := filepath.Join(dir, "replicad-Lm-8B.out")
	wrote, err := os.ReadFile(file)
	if code := cmd.ProcessState.ExitCode(); code != 7 || err != nil || !strings.Contains(string(wrote), "do not requeue") || !strings.Contains(said.String(), file) {
		t.Errorf("code %d, %v; it said\n%s\nand wrote\n%s", code, err, &said, wrote)
	}
}

// What lies where the file of --nohup would be is refused where it is no file of one's own: a pipe would have the launcher wait for its reader.
func TestTheFileOfNohupIsOnesOwn(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	file := filepath.Join(dir, "replicad-lm.out")
	refused := func(says string) {
		t.Helper()
		code, _, errout := try(t, "run", "--nohup", "--socket", filepath.Join(dir, "none"), "--job", "lm", "--world", "1", "--", "true")
		if code != exitUsage || !strings.Contains(errout, says) {
			t.Errorf("code %d: %s", code, errout)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(file, 0o666); err != nil {
		t.Fatal(err)
	}
	refused("where nothing else has that name")
	if err := syscall.Mkfifo(file, 0o666); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	refused("is no file")
	if os.Geteuid() != 0 {
		t.Skip("to give a file to another user takes root")
	}
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 9003, 9003); err != nil {
		t.Fatal(err)
	}
	refused("belongs to user 9003")
}

func TestRunEndsWithTheJobsCode(t *testing.T) {
	done := make(chan struct{})
	close(done)
	socket, hello := answeringDaemon(t, "do not requeue", done)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errout := try(t, "run", "--socket", socket, "--token-file", token, "--job", "lm", "--world", "4", "--groups", "0,1,0,1", "--ranks", "1,3", "--slots", "3", "--", "sh", "-c", "--flags of the command", "--job")
	if code != 7 || !strings.Contains(errout, "do not requeue") {
		t.Errorf("code %d: %s", code, errout)
	}
	if h := <-hello; h.Job != "lm" || h.Token != "t" || h.World != 4 || h.Capacity != 2 || h.Slots != 3 || !slices.Equal(h.Groups, []replica.GroupID{0, 1, 0, 1}) {
		t.Errorf("hello %+v", h)
	}
}

func TestRunTakesWhatTheConfigurationSays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	c, err := config.Load("../../docs/replicad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.JobSecret = "0123456789abcdef"
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	f := runFlags{target: target{file: path}, opt: launch.Options{Job: "lm", World: 1}}
	o, err := f.options([]string{"true"}, stdio{})
	if err != nil || o.Socket != c.Socket || o.Token != c.JobToken("lm") || len(o.Token) != 40 || o.Host != "10.0.0.1" {
		t.Errorf("%+v, %v", o, err)
	}
	f.opt.Host = "10.9.9.9"
	if o, err = f.options([]string{"true"}, stdio{}); err != nil || o.Host != "10.9.9.9" {
		t.Errorf("%+v, %v", o, err)
	}
}

// stopKeeper ends a keeper that this test started and is nobody's child.
func stopKeeper(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

func TestEnsureKeeper(t *testing.T) {
	t.Setenv("CMD_TEST", "replicad")
	dir := t.TempDir()
	socket, log := filepath.Join(dir, "run", "k.sock"), filepath.Join(dir, "keeper.log")
	var errout strings.Builder
	pid, err := keeper.Ensure(t.Context(), socket, log, &errout)
	if err != nil {
		t.Fatalf("%v\n%s", err, errout.String())
	}
	defer stopKeeper(t, pid)
	if pid == 0 || !keeper.Answers(socket) {
		t.Fatalf("keeper %d does not answer", pid)
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	// After the command's name: state, parent, process group, session.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if fields[1] == strconv.Itoa(os.Getpid()) || fields[3] != strconv.Itoa(pid) {
		t.Errorf("keeper %d has parent %s and session %s: it would end with the daemon or its terminal", pid, fields[1], fields[3])
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil { // a closed terminal takes no state
		t.Fatal(err)
	}
	if err := keeper.Await(t.Context(), socket); err != nil {
		t.Errorf("waiting for the keeper that is there: %v", err)
	}
	if again, err := keeper.Ensure(t.Context(), socket, log, &errout); again != 0 || err != nil {
		t.Errorf("a second keeper %d, %v", again, err)
	}
}

func TestNoKeeper(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(launch.Signaled{Signal: syscall.SIGTERM})
	socket := filepath.Join(t.TempDir(), "none")
	if err := keeper.Await(ctx, socket); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("a keeper that nobody started: %v", err)
	}
}

func TestKeeperThatCannotStart(t *testing.T) {
	t.Setenv("CMD_TEST", "replicad")
	dir := t.TempDir()
	socket := filepath.Join(dir, strings.Repeat("x", 120))
	var errout strings.Builder
	pid, err := keeper.Ensure(t.Context(), socket, filepath.Join(dir, "log"), &errout)
	if err == nil {
		stopKeeper(t, pid)
	}
	if err == nil || !strings.Contains(err.Error(), socket) || !strings.Contains(errout.String(), "ended at once") {
		t.Errorf("%v\n%s", err, errout.String())
	}
}

// TestChaosCluster: nodes start, one is killed alone at a word, and nothing is left at the end: that of standard input, or at a word that means nothing.
func TestChaosCluster(t *testing.T) {
	t.Setenv("CMD_TEST", "replicad")
	runs := func(pid int) bool { return syscall.Kill(pid, 0) == nil }
	for last, want := range map[string]int{"": exitOK, "kill z\n": exitUsage} {
		in, words := io.Pipe()
		said, out := io.Pipe()
		code := make(chan int, 1)
		go func() {
			code <- run(t.Context(), []string{"chaos", "cluster", "--nodes", "a,b,c", "--dir", t.TempDir()}, stdio{in, out, out})
			_ = out.Close()
		}()
		lines := bufio.NewScanner(said)
		until := func(what string) (e struct {
			Event, Node    string
			Daemon, Keeper int
		}) {
			for e.Event != what && lines.Scan() {
				_ = json.Unmarshal(lines.Bytes(), &e) // a line that is no JSON is no event
			}
			return e
		}
		a, b := until("node"), until("node")
		until("linked")
		_, _ = io.WriteString(words, "kill b\n")
		if e := until("killed"); e.Node != "b" || runs(b.Daemon) || runs(b.Keeper) || !runs(a.Daemon) || !runs(a.Keeper) {
			t.Errorf("%+v was said; %+v should be dead and %+v alive", e, b, a)
		}
		_, _ = io.WriteString(words, last)
		_ = words.Close()
		until("an end")
		if got := <-code; got != want || runs(a.Daemon) || runs(a.Keeper) {
			t.Errorf("after %q: code %d, want %d; %+v should be dead", last, got, want, a)
		}
	}
}
