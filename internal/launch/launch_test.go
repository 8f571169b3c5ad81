package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/internal/otheruser"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) {
	if os.Getenv("LAUNCH_TEST") == "launcher" {
		os.Exit(playLauncher(os.Args[1:]))
	}
	leakcheck.Main(m)
}

// patience bounds waits that fail the test when they run out; nothing asserts a time.
const patience = 30 * time.Second

// daemon is a fake one on a real socket.
type daemon struct {
	t    *testing.T
	path string
	ln   *net.UnixListener
}

func newDaemon(t *testing.T) *daemon {
	d := &daemon{t: t, path: filepath.Join(t.TempDir(), "s")}
	d.listen()
	return d
}

func (d *daemon) listen() {
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: d.path, Net: "unixpacket"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.ln = ln
	d.t.Cleanup(func() { ln.Close() })
}

// peer is the daemon's end of one connection.
type peer struct {
	t    *testing.T
	conn *net.UnixConn
}

// accept takes a connection and its hello.
func (d *daemon) accept() (*peer, wire.RunHello) {
	d.t.Helper()
	_ = d.ln.SetDeadline(time.Now().Add(patience))
	conn, err := d.ln.AcceptUnix()
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	p := &peer{d.t, conn}
	body := p.want(wire.MRunHello)
	hello, err := wire.ParseRunHello(body)
	if err != nil {
		d.t.Fatal(err)
	}
	return p, hello
}

// welcome accepts a connection and says RUN_OK.
func (d *daemon) welcome() *peer {
	d.t.Helper()
	p, _ := d.accept()
	p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI}.Append(nil))
	return p
}

func (p *peer) send(typ uint16, body []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(wire.AppendRank(nil, wire.RankHeader{Type: typ}, body)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) start(r replica.Rank, world uint32) {
	p.t.Helper()
	p.startAgain(r, world, 0)
}

// startAgain asks for a rank of which so many processes ended before they attached.
func (p *peer) startAgain(r replica.Rank, world, early uint32) {
	p.t.Helper()
	p.send(wire.MRunStart, wire.RunStart{Rank: r, World: world, Early: early}.Append(nil))
}

// want reads the next message, which must be of this type.
func (p *peer) want(typ uint16) []byte {
	p.t.Helper()
	buf := make([]byte, wire.MaxRankMessage)
	_ = p.conn.SetReadDeadline(time.Now().Add(patience))
	n, err := p.conn.Read(buf)
	if err != nil {
		p.t.Fatalf("waiting for message %d: %v", typ, err)
	}
	h, body, err := wire.ParseRank(buf[:n])
	if err != nil || h.Type != typ {
		p.t.Fatalf("message %d (%v), want %d", h.Type, err, typ)
	}
	return body
}

func (p *peer) process(typ uint16) wire.RunExited {
	p.t.Helper()
	x, err := wire.ParseRunExited(p.want(typ))
	if err != nil {
		p.t.Fatal(err)
	}
	return x
}

func (p *peer) running() wire.RunExited { p.t.Helper(); return p.process(wire.MRunRunning) }
func (p *peer) exited() wire.RunExited  { p.t.Helper(); return p.process(wire.MRunExited) }

func (p *peer) done(code int32, text string) {
	p.t.Helper()
	p.send(wire.MRunDone, wire.Refused{Code: code, Text: text}.Append(nil))
}

// job is a running Run.
type job struct {
	t      *testing.T
	cancel context.CancelCauseFunc
	ended  chan struct{}
	code   int
	err    error
	log    *logger
}

func run(d *daemon, world int, script string, change ...func(*Options)) *job {
	return runIn(d.t, d.path, world, script, change...)
}

func runIn(t *testing.T, path string, world int, script string, change ...func(*Options)) *job {
	ctx, cancel := context.WithCancelCause(context.Background())
	j := &job{t: t, cancel: cancel, ended: make(chan struct{}), log: &logger{}}
	o := Options{Socket: path, Job: "test", World: world, Command: []string{"sh", "-c", script}, Env: os.Environ(), Logf: j.log.printf}
	for _, f := range change {
		f(&o)
	}
	go func() {
		defer close(j.ended)
		j.code, j.err = Run(ctx, o)
	}()
	t.Cleanup(func() { cancel(Signaled{syscall.SIGKILL}); <-j.ended })
	return j
}

func (j *job) wait() (int, error) {
	j.t.Helper()
	select {
	case <-j.ended:
		return j.code, j.err
	case <-time.After(patience):
		j.t.Fatalf("the launcher has not ended; it said:\n%s", j.log)
		return 0, nil
	}
}

type logger struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logger) printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.text, format+"\n", args...)
}

// await waits until a text has been said.
func (l *logger) await(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(l.String(), text); runtimeYield() {
		if time.Now().After(deadline) {
			t.Fatalf("%q has not been said, but:\n%s", text, l)
		}
	}
}

func (l *logger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func alive(pid uint64) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z ")) // a zombie has ended
}

const forever = "while :; do sleep 100; done"

func TestHelloAndEnvironment(t *testing.T) {
	d, out := newDaemon(t), filepath.Join(t.TempDir(), "env")
	for _, name := range []string{"REPLICAD_RANK", "RANK", "TORCHELASTIC_ERROR_FILE"} {
		t.Setenv(name, "stale")
	}
	t.Setenv("MASTER_PORT", "7000")
	t.Setenv("REPLICAD_IDENTITY", "/k")
	j := run(d, 4, "env > "+out, func(o *Options) {
		o.Groups, o.Ranks, o.Token, o.Host = []replica.GroupID{0, 1, 0, 1}, []replica.Rank{0, 3}, "secret", "10.0.0.7"
		o.MinCopies, o.Cadence, o.Slots, o.ChunkMB, o.DurableEvery = 3, 2, 4, 8, 50
	})
	p, h := d.accept()
	want := wire.RunHello{ABI: wire.RankABI, World: 4, Capacity: 2, Ranks: []replica.Rank{0, 3}, Groups: []replica.GroupID{0, 1, 0, 1}, MinCopies: 3, Cadence: 2, Slots: 4, ChunkBytes: 8 << 20, DurableEvery: 50, Job: "test", Token: "secret"}
	if fmt.Sprint(h) != fmt.Sprint(want) {
		t.Errorf("hello %+v, want %+v", h, want)
	}
	p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI}.Append(nil))
	p.send(wire.MRunStart, wire.RunStart{Rank: 3, World: 4, Group: 1, Groups: []replica.GroupID{0, 1, 0, 1}}.Append(nil))
	r := p.running()
	if x := p.exited(); x.Rank != 3 || x.Status != 0 || x.PID != r.PID {
		t.Errorf("exit %+v of %+v", x, r)
	}
	env, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(env), "\n")
	for _, want := range []string{"REPLICAD_SOCKET=" + d.path, "REPLICAD_JOB=test", "REPLICAD_TOKEN=secret", "REPLICAD_RANK=3", "REPLICAD_WORLD=4", "REPLICAD_GROUP=1", "REPLICAD_GROUPS=0,1,0,1", "REPLICAD_HOST=10.0.0.7",
		"REPLICAD_IDENTITY=/k", "RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=10.0.0.7", "MASTER_PORT=7000", "TORCHELASTIC_RUN_ID=replicad:test", "TORCHELASTIC_RESTART_COUNT=0",
		"TORCHELASTIC_MAX_RESTARTS=2147483647", "TORCHELASTIC_USE_AGENT_STORE=False"} {
		if !slices.Contains(lines, want) {
			t.Errorf("%s is not in the environment:\n%s", want, env)
		}
	}
	if strings.Contains(string(env), "stale") {
		t.Errorf("a stale variable is inherited:\n%s", env)
	}
	p.done(0, "finished")
	if code, err := j.wait(); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}

// A program that fails while it starts is told from a rank that was lost: the second time, not the fifth.
func TestEarlyEndsAreSaid(t *testing.T) {
	d := newDaemon(t)
	j := run(d, 1, "exit 7")
	p := d.welcome()
	const said = "rank 0 ended 2 times in a row before it had a session, the last time with status 7 after "
	for early := range uint32(3) {
		if early == 2 && strings.Contains(j.log.String(), said) {
			t.Errorf("said too early:\n%s", j.log)
		}
		p.startAgain(0, 1, early)
		p.running()
		p.exited()
	}
	p.done(5, "gave up")
	if code, err := j.wait(); code != 5 || err != nil || !strings.Contains(j.log.String(), said) {
		t.Errorf("code %d, %v; it said:\n%s", code, err, j.log)
	}
}

// Who keeps what the job begins with hears when it is read.
func TestBegun(t *testing.T) {
	d := newDaemon(t)
	begun := make(chan struct{})
	j := run(d, 1, "true", func(o *Options) { o.Begun = func() { close(begun) } })
	p := d.welcome()
	p.send(wire.MRunBegun, nil)
	select {
	case <-begun:
	case <-time.After(patience):
		t.Fatalf("it has not heard; it said:\n%s", j.log)
	}
}

func TestStatuses(t *testing.T) {
	for _, tc := range []struct {
		script string
		want   int32
	}{{"exit 7", 7}, {"kill -9 $$", 128 + 9}, {"exit 0", 0}} {
		d := newDaemon(t)
		j := run(d, 1, tc.script)
		p := d.welcome()
		p.start(0, 1)
		p.running()
		if x := p.exited(); x.Status != tc.want {
			t.Errorf("%q: status %d, want %d", tc.script, x.Status, tc.want)
		}
		p.done(3, "gave up")
		if code, err := j.wait(); code != 3 || err != nil {
			t.Errorf("%q: code %d, %v, want the job's", tc.script, code, err)
		}
	}
}

func TestNeverRestartsOnItsOwn(t *testing.T) {
	d, log := newDaemon(t), filepath.Join(t.TempDir(), "log")
	j := run(d, 2, "echo $REPLICAD_RANK >> "+log+"; exit 1")
	p := d.welcome()
	for _, r := range []replica.Rank{0, 1, 0} { // the daemon starts rank 0 again
		p.start(r, 2)
		p.running()
		if x := p.exited(); x.Rank != r || x.Status != 1 {
			t.Fatalf("exit %+v", x)
		}
	}
	p.done(1, "restart budget used up")
	if code, err := j.wait(); code != 1 || err != nil {
		t.Errorf("the launcher ended with %d, %v", code, err)
	}
	if text, err := os.ReadFile(log); err != nil || string(text) != "0\n1\n0\n" {
		t.Errorf("processes that ran: %q, %v; want exactly those that the daemon asked for", text, err)
	}
}

func TestDaemonAway(t *testing.T) {
	d, gate := newDaemon(t), filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	j := run(d, 2, `[ $REPLICAD_RANK = 0 ] && { read x < `+gate+`; exit 5; }; `+forever)
	p := d.welcome()
	p.start(0, 2)
	zero := p.running()
	p.start(1, 2)
	one := p.running()

	d.ln.Close()
	p.conn.Close()
	// The daemon is away; rank 0 ends meanwhile. Opening the gate returns once the process reads from it.
	f, err := os.OpenFile(gate, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	j.log.await(t, fmt.Sprintf("process %d ended with status 5", zero.PID)) // the launcher knows: its next daemon is told of the end, not of the process
	if !alive(one.PID) {
		t.Error("a process ended because the daemon did")
	}

	for range 2 { // the same is said after each reconnect
		_ = os.Remove(d.path)
		d.listen()
		p = d.welcome()
		if r := p.running(); r != one {
			t.Errorf("running %+v, want %+v", r, one)
		}
		if x := p.exited(); x.Rank != 0 || x.Status != 5 || x.PID != zero.PID {
			t.Errorf("exit %+v of %+v", x, zero)
		}
		d.ln.Close()
		p.conn.Close()
	}

	_ = os.Remove(d.path)
	d.listen()
	p = d.welcome()
	p.running()
	p.exited()
	p.start(1, 2) // runs already: named, not started twice
	if r := p.running(); r != one {
		t.Errorf("rank 1 started twice: %+v, ran as %+v", r, one)
	}
	p.done(9, "stop")
	if code, _ := j.wait(); code != 9 {
		t.Errorf("code %d", code)
	}
	if alive(one.PID) {
		t.Error("a process outlived the launcher")
	}
}

// Files that the run is to carry come with each hello: a daemon that was started again knows nothing of them.
func TestKeptFilesComeWithEachHello(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tar")
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := newDaemon(t)
	j := run(d, 1, "true", func(o *Options) { o.Kept = f })
	for i := range 2 {
		_ = d.ln.SetDeadline(time.Now().Add(patience))
		conn, err := d.ln.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{t, conn}
		b, files, _, _, err := unixsock.Receive(conn, make([]byte, wire.MaxRankMessage))
		if err != nil || len(files) != 1 {
			t.Fatalf("hello %d: %d descriptors: %v", i, len(files), err)
		}
		_, body, err := wire.ParseRank(b)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := wire.ParseRunHello(body); err != nil || h.Flags&wire.RunKeeps == 0 {
			t.Errorf("hello %d: flags %d: %v", i, h.Flags, err)
		}
		got := make([]byte, 8)
		if n, _ := files[0].ReadAt(got, 0); string(got[:n]) != "kept" {
			t.Errorf("hello %d: %q", i, got[:n])
		}
		unixsock.CloseAll(files)
		p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI}.Append(nil))
		if i > 0 {
			p.done(3, "stop")
		}
		conn.Close()
	}
	if code, _ := j.wait(); code != 3 {
		t.Errorf("code %d", code)
	}
}

// runtimeYield lets the processes watched in a polling loop run.
func runtimeYield() { _, _ = os.Stat("/proc/self") }

func TestStopOfOneRank(t *testing.T) {
	d := newDaemon(t)
	j := run(d, 2, forever)
	p := d.welcome()
	p.start(0, 2)
	p.running()
	p.start(1, 2)
	p.running()
	p.send(wire.MRunStop, wire.RunStop{Rank: 1, Signal: 9}.Append(nil))
	if x := p.exited(); x.Rank != 1 || x.Status != 137 {
		t.Errorf("exit %+v", x)
	}
	p.send(wire.MRunStop, wire.RunStop{Rank: 0}.Append(nil))
	if x := p.exited(); x.Rank != 0 || x.Status != 143 {
		t.Errorf("exit %+v, want SIGTERM's", x)
	}
	p.send(wire.MRunStop, wire.RunStop{Rank: 0, Signal: 9}.Append(nil)) // nobody runs: nothing happens
	p.done(0, "")
	if code, err := j.wait(); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}

func TestSignalsAreForwardedThenKilled(t *testing.T) {
	for name, tc := range map[string]struct {
		trap   string
		grace  time.Duration
		status int32
	}{
		"it ends":                        {"trap 'exit 44' INT", patience, 44},
		"it ignores it, and has a child": {"trap '' INT TERM", 200 * time.Millisecond, 128 + 9}, // killed after the grace
	} {
		t.Run(name, func(t *testing.T) {
			d, ready := newDaemon(t), filepath.Join(t.TempDir(), "ready")
			if err := syscall.Mkfifo(ready, 0o600); err != nil {
				t.Fatal(err)
			}
			j := run(d, 1, tc.trap+`; sleep 1000 & echo $! > `+ready+`; while :; do sleep 0.01; done`, func(o *Options) { o.Grace = tc.grace })
			p := d.welcome()
			p.start(0, 1)
			pid := p.running().PID
			text, err := os.ReadFile(ready)
			if err != nil {
				t.Fatal(err)
			}
			child, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			j.cancel(Signaled{syscall.SIGINT})
			if x := p.exited(); x.Status != tc.status {
				t.Errorf("status %d, want %d", x.Status, tc.status)
			}
			if code, err := j.wait(); code != 130 || err != nil {
				t.Errorf("code %d, %v, want 130", code, err)
			}
			if want := `job "test" is kept in memory: the same command goes on with it`; !strings.Contains(j.log.String(), want) {
				t.Errorf("it does not say %q:\n%s", want, j.log)
			}
			for _, pid := range []uint64{pid, child} {
				for alive(pid) { // an orphan's end is seen by its reaper, not by us
					runtimeYield()
				}
			}
		})
	}
}

// What a program does after its job, such as a last save, takes as long as it takes; nobody does it again if it fails.
func TestFinishedJobWaitsForItsProcesses(t *testing.T) {
	for _, tc := range []struct {
		name, end    string
		status, want int
	}{{"well", "exit 0", 0, 0}, {"badly", "exit 3", 3, 1}, {"killed by somebody else", "kill -9 $$", 137, 1}, {"ended by somebody else", "kill $$", 143, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			d, gates := newDaemon(t), map[replica.Rank]string{0: newGate(t), 2: newGate(t)}
			j := run(d, 3, `case $REPLICAD_RANK in 0) read x < `+gates[0]+`;; 1) exit 0;; 2) read x < `+gates[2]+`;; esac; `+tc.end, func(o *Options) { o.Grace = 10 * time.Millisecond })
			p := d.welcome()
			for r := range replica.Rank(3) {
				p.start(r, 3)
				p.running()
				if r == 1 {
					p.exited()
				}
			}
			p.done(0, "finished")
			j.log.await(t, `job "test" is finished; waiting for the processes of ranks [0 2] to end`)
			for _, gate := range gates {
				openGate(t, gate)
				if x := p.exited(); int(x.Status) != tc.status {
					t.Errorf("a rank that was about to end has status %d, want %d", x.Status, tc.status)
				}
			}
			if code, err := j.wait(); code != tc.want || err != nil {
				t.Errorf("code %d, want %d; %v", code, tc.want, err)
			}
			if n := strings.Count(j.log.String(), "waiting for the processes"); n != 1 {
				t.Errorf("said %d times that it waits:\n%s", n, j.log)
			}
		})
	}
}

// Of a finished job's processes some end as they are told: those that the daemon stops, and all on a signal, which is not the job's code then.
func TestFinishedJobStopsWhatItIsToldTo(t *testing.T) {
	d := newDaemon(t)
	j := run(d, 2, forever, func(o *Options) { o.Grace = 10 * time.Millisecond })
	p := d.welcome()
	for r := range replica.Rank(2) {
		p.start(r, 2)
		p.running()
	}
	p.send(wire.MRunStop, wire.RunStop{Rank: 0}.Append(nil)) // superseded elsewhere, say
	p.done(0, "finished")
	if x := p.exited(); x.Rank != 0 || x.Status != 143 {
		t.Errorf("exit %+v, want rank 0 by SIGTERM", x)
	}
	j.log.await(t, "waiting for the processes of ranks [1] to end")
	j.cancel(Signaled{syscall.SIGINT})
	if x := p.exited(); x.Rank != 1 {
		t.Errorf("exit %+v, want rank 1", x)
	}
	if code, err := j.wait(); code != 130 || err != nil {
		t.Errorf("code %d, %v: what rank 1 still did was cut short", code, err)
	}
}

// A daemon that is started again knows the job's name no more: a launcher that still waits for processes must not have it made anew.
func TestFinishedJobIsNotAskedForAgain(t *testing.T) {
	d, gate := newDaemon(t), newGate(t)
	j := run(d, 1, "read x < "+gate+"; exit 0", func(o *Options) { o.Grace = 10 * time.Millisecond })
	p := d.welcome()
	p.start(0, 1)
	p.running()
	p.done(0, "finished")
	j.log.await(t, "waiting for the processes")
	p.conn.Close()
	again := make(chan error)
	go func() {
		_, err := d.ln.AcceptUnix()
		again <- err
	}()
	j.log.await(t, "the daemon has gone")
	openGate(t, gate)
	if code, err := j.wait(); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
	d.ln.Close()
	if err := <-again; err == nil {
		t.Error("the launcher asked the daemon for its finished job")
	}
}

// A link that has relayed the end of the job is through with its daemon, however long the launcher takes to look at that: it ends by itself.
func TestLinkEndsWithItsJob(t *testing.T) {
	d := newDaemon(t)
	l := &link{socket: d.path, hello: wire.RunHello{ABI: wire.RankABI, World: 1, Capacity: 1, Job: "test"}, wait: patience, events: make(chan linkEvent)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended, again := make(chan struct{}), make(chan error, 1)
	go func() { defer close(ended); l.run(ctx) }()
	p, _ := d.accept()
	p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI}.Append(nil))
	if e := <-l.events; e.conn == nil {
		t.Fatalf("%+v, want a connection", e)
	}
	p.send(wire.MRunDone, []byte{1}) // malformed: the job may go on
	if e := <-l.events; e.typ != wire.MRunDone {
		t.Fatalf("%+v, want what the daemon sent", e)
	}
	p.conn.Close()
	if e := <-l.events; e.err == nil {
		t.Fatalf("%+v, want the end of the connection", e)
	}
	p, _ = d.accept()
	p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI}.Append(nil))
	<-l.events
	p.done(0, "finished")
	if e := <-l.events; e.typ != wire.MRunDone {
		t.Fatalf("%+v, want the end of the job", e)
	}
	p.conn.Close()
	go func() {
		_, err := d.ln.AcceptUnix()
		again <- err
	}()
	if e := <-l.events; e.err == nil {
		t.Fatalf("%+v, want the end of the connection", e)
	}
	select {
	case <-ended:
	case err := <-again:
		t.Errorf("it connects again: %v", err)
	}
}

func newGate(t *testing.T) string {
	t.Helper()
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	return gate
}

// openGate lets the process that reads from the gate go on; it waits for it.
func openGate(t *testing.T, gate string) {
	t.Helper()
	f, err := os.OpenFile(gate, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestWhatTheDaemonRefuses(t *testing.T) {
	d := newDaemon(t)
	j := run(d, 1, "exit 0")
	p, _ := d.accept() // not yet: tried again
	p.send(wire.MRefused, wire.Refused{Code: wire.CodeAgain, Text: "no quorum"}.Append(nil))
	p, _ = d.accept()
	p.send(wire.MRefused, wire.Refused{Code: wire.CodeRefused, Text: "wrong token: set --token"}.Append(nil))
	if code, err := j.wait(); code != 1 || err == nil || !strings.Contains(err.Error(), "wrong token") {
		t.Errorf("code %d, %v", code, err)
	}
}

func TestRefusedWhileRanksRun(t *testing.T) {
	d := newDaemon(t)
	j := run(d, 1, forever)
	p := d.welcome()
	p.start(0, 1)
	r := p.running()
	p.conn.Close()
	for range 3 {
		p, _ = d.accept()
		p.send(wire.MRefused, wire.Refused{Code: wire.CodeVersion, Text: "another version"}.Append(nil))
	}
	p, _ = d.accept()
	p.send(wire.MRefused, wire.Refused{Code: wire.CodeVersion, Text: "a third one"}.Append(nil))
	p, _ = d.accept()
	if !alive(r.PID) {
		t.Error("a refusal of the daemon ended training")
	}
	if n := strings.Count(j.log.String(), "another version; meanwhile 1 process(es) go on"); n != 1 { // though a daemon had gone before it
		t.Errorf("the refusal is said %d times:\n%s", n, j.log)
	}
	if !strings.Contains(j.log.String(), "a third one; meanwhile 1 process(es) go on") {
		t.Errorf("another refusal is not said:\n%s", j.log)
	}
	p.send(wire.MRefused, wire.Refused{Code: wire.CodeStopped, Text: "the job has ended"}.Append(nil))
	if code, err := j.wait(); code != 1 || err == nil || alive(r.PID) {
		t.Errorf("code %d, %v, alive %v: a job that has ended keeps a process", code, err, alive(r.PID))
	}
}

func TestStartThatCannotBe(t *testing.T) {
	d := newDaemon(t)
	j := run(d, 2, forever, func(o *Options) { o.Capacity = 1 })
	p := d.welcome()
	p.start(0, 3)
	if x := p.exited(); x.Status != statusCannotRun || x.PID != 0 {
		t.Errorf("a start for another world: %+v", x)
	}
	p.start(0, 2)
	p.running()
	p.start(1, 2)
	if x := p.exited(); x.Rank != 1 || x.Status != statusCannotRun || x.PID != 0 {
		t.Errorf("a start beyond the capacity: %+v", x)
	}
	p.send(99, nil) // unknown and malformed messages change nothing
	p.send(wire.MRunStart, []byte{1})
	p.done(4, "")
	if code, _ := j.wait(); code != 4 {
		t.Errorf("code %d", code)
	}
}

func TestNoDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	j := runIn(t, path, 1, "exit 0", func(o *Options) { o.Patience = 100 * time.Millisecond })
	code, err := j.wait()
	if code != 1 || err == nil || !strings.Contains(err.Error(), path) || !errors.Is(err, ErrNoDaemon) || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("code %d, %v", code, err)
	}
}

// TestAStranger: a launcher sends nothing to another user's process that answers on the socket, and does not wait for it to become the daemon.
func TestAStranger(t *testing.T) {
	const path = "@replicad-launch-stranger"
	l := otheruser.Listen(t, path, otheruser.Nobody-1)
	heard := make(chan int, 1)
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			heard <- -1
			return
		}
		defer c.Close()
		n, _ := c.Read(make([]byte, 100))
		heard <- n
	}()
	code, err := runIn(t, path, 1, "exit 0").wait()
	if code != 1 || err == nil || !strings.Contains(err.Error(), "user 65533") || !strings.Contains(err.Error(), "daemon_user") || !errors.Is(err, ErrNoDaemon) {
		t.Errorf("code %d, %v", code, err)
	}
	if n := <-heard; n > 0 {
		t.Errorf("it was sent %d bytes", n)
	}
}

// TestRefusedWithoutAHearing: a daemon that says why and closes, before the hello was sent or with it unread, is not taken for one that is gone.
func TestRefusedWithoutAHearing(t *testing.T) {
	for _, sent := range []bool{false, true} {
		d := newDaemon(t)
		j := runIn(t, d.path, 1, "exit 0")
		conn, err := d.ln.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if sent {
			raw, err := conn.SyscallConn()
			if err == nil {
				err = raw.Read(func(fd uintptr) bool {
					_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
					return err != syscall.EAGAIN
				})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		(&peer{t, conn}).send(wire.MRefused, wire.Refused{Code: wire.CodeRefused, Text: "user 7 may not"}.Append(nil))
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if code, err := j.wait(); code != 1 || err == nil || !strings.Contains(err.Error(), "user 7 may not") {
			t.Errorf("hello sent %v: code %d, %v", sent, code, err)
		}
	}
}

// TestSilentDaemon: a daemon that took the connection is there. Whoever reads that it is not starts another one.
func TestSilentDaemon(t *testing.T) {
	d := newDaemon(t)
	short := func(o *Options) { o.Patience, o.helloWait = 200*time.Millisecond, 20*time.Millisecond }
	j := runIn(t, d.path, 1, "exit 0", short)
	code, err := j.wait()
	create := Options{Socket: d.path, Job: "lm", World: 4, Command: []string{"true"}}
	short(&create)
	for what, err := range map[string]error{"run": err, "create": Create(t.Context(), create)} {
		if code != 1 || !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), d.path) || !strings.Contains(err.Error(), "the daemon is there") || strings.Contains(err.Error(), "start one") {
			t.Errorf("%s: code %d, %v", what, code, err)
		}
	}
}

// TestProcessesDieWithTheLauncher kills a launcher outright.
func TestProcessesDieWithTheLauncher(t *testing.T) {
	d := newDaemon(t)
	cmd := exec.Command(os.Args[0], d.path)
	cmd.Env = append(os.Environ(), "LAUNCH_TEST=launcher")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		if err := cmd.Wait(); cmd.ProcessState == nil {
			t.Error(err)
		}
	})
	p := d.welcome()
	p.start(0, 1)
	r := p.running()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); alive(r.PID); runtimeYield() {
		if time.Now().After(deadline) {
			t.Fatalf("process %d outlives its launcher", r.PID)
		}
	}
}

func playLauncher(args []string) int {
	code, err := Run(context.Background(), Options{Socket: args[0], Job: "test", World: 1, Command: []string{"sleep", "1000"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// Whoever was accepted for a job names it when it connects again: its name may be another job's by then.
func TestNamesItsJobWhenItComesBack(t *testing.T) {
	d := newDaemon(t)
	run(d, 1, forever)
	for _, want := range []replica.JobID{{}, {0: 4}, {0: 4}} {
		p, hello := d.accept()
		if hello.Joined != want {
			t.Errorf("it names job %v, want %v", hello.Joined, want)
		}
		p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI, Job: replica.JobID{0: 4}}.Append(nil))
		p.conn.Close()
	}
}

// A daemon that hung up may have said why. Whoever finds out by a write that fails leaves the words to the reader: the connection was closed over them.
func TestARefusalOutlivesAWriteThatFails(t *testing.T) {
	for _, unread := range []bool{false, true} { // the daemon hangs up with a message of ours unread, which resets the connection
		for who, says := range map[string]func(*net.UnixConn){
			"launcher": func(c *net.UnixConn) {
				(&launcher{opt: Options{Logf: t.Logf}, conn: c}).send(wire.MRunExited, wire.RunExited{})
			},
			"agent": func(c *net.UnixConn) { (&agent{opt: Options{Logf: t.Logf}, conn: c, joined: true}).say() },
		} {
			d := newDaemon(t)
			near, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.path, Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			defer near.Close()
			far, err := d.ln.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			if unread {
				says(near)
			}
			(&peer{t, far}).send(wire.MRefused, wire.Refused{Code: wire.CodeInvalid, Text: "not so"}.Append(nil))
			far.Close()
			says(near)
			b := make([]byte, wire.MaxRankMessage)
			n, err := near.Read(b)
			if h, body, perr := wire.ParseRank(b[:max(n, 0)]); err != nil || perr != nil || h.Type != wire.MRefused || !strings.Contains(string(body), "not so") {
				t.Errorf("%s, unread %v: %v, %v: the daemon's words are lost", who, unread, err, perr)
			}
		}
	}
}
