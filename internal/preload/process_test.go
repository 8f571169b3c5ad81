package preload

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds waits that fail the test when they run out; nothing asserts a time.
const patience = 30 * time.Second

// echoing is a program that answers each line.
const echoing = "import os, sys\nfor line in sys.stdin:\n    print(os.getpid(), os.environ['RANK'], line, end='', flush=True)"

// interpreter is Python's, which `python3` may be a script for.
func interpreter(t *testing.T) string {
	t.Helper()
	name, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skipf("python3: %v", err)
	}
	return strings.TrimSpace(string(name))
}

// serving is a Server whose process serves forks of echoing.
func serving(t *testing.T, modules ...string) *Server {
	t.Helper()
	folder, err := filepath.Abs(filepath.Join("..", "..", "python", "src", "replicad", "_preload"))
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{interpreter(t), "-c", echoing}
	null := func() ([]*os.File, error) {
		var files []*os.File
		for range 3 {
			f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		return files, nil
	}
	s, err := New(Options{Argv: argv, Env: os.Environ(), Varying: []string{"RANK"}, Again: time.Millisecond, Quiet: DefaultQuiet, Known: func(pid int) bool { return pid == os.Getpid() }, Stdio: null, Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.Learn(time.Now(), Reported{Report: Report{PID: os.Getpid(), Argv: latins(argv), Folder: folder, Modules: append(modules, "json", "decimal")}})
	await(t, s)
	return s
}

// hanging is a module whose import never ends: a minute that nothing is said of it passes at once.
const hanging = "hangs"

// await handles events until forks are served.
func await(t *testing.T, s *Server) {
	t.Helper()
	for end := time.After(patience); ; {
		if _, ok := s.room.Ready(); ok {
			s.room.kib += 1 << 20 // a machine without time takes as long over a fork as over one of a large process
			return
		}
		select {
		case e := <-s.Events():
			s.Learn(time.Now(), e)
			if said, ok := e.(Said); ok && said.Message.Importing == hanging {
				s.Step(time.Now().Add(DefaultQuiet))
			}
		case <-time.After(time.Millisecond):
			s.Step(time.Now())
		case <-end:
			t.Fatal("no process serves forks")
		}
	}
}

// talk is a forked process, and pipes to it.
type talk struct {
	t     *testing.T
	child *os.Process
	in    *os.File
	out   *bufio.Reader
}

func fork(t *testing.T, s *Server) *talk {
	t.Helper()
	in, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	k := &talk{t: t, child: s.Fork(append(os.Environ(), "RANK=3"), []*os.File{in, out, out}), in: inW, out: bufio.NewReader(outR)}
	in.Close()
	out.Close()
	t.Cleanup(func() {
		inW.Close()
		outR.Close()
		if k.child != nil {
			_ = k.child.Kill()
			_, _ = k.child.Wait()
		}
	})
	return k
}

// answers asks the process whether it is there.
func (k *talk) answers() {
	k.t.Helper()
	if k.child == nil {
		k.t.Fatal("nothing was forked")
	}
	fmt.Fprintln(k.in, "there?")
	if line, err := k.out.ReadString('\n'); line != fmt.Sprintf("%d 3 there?\n", k.child.Pid) {
		k.t.Fatalf("process %d says %q, %v", k.child.Pid, line, err)
	}
}

// onItsOwnThread runs f on a thread that then ends.
func onItsOwnThread(t *testing.T, f func()) {
	t.Helper()
	tid := make(chan int, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, unless it is the first one
		f()
		tid <- unix.Gettid()
	})
	wg.Wait()
	id := <-tid
	if id == os.Getpid() {
		t.Skip("the goroutine was given the process's first thread")
	}
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", id)); err != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("thread %d does not end", id)
		}
	}
}

// The kernel ends a process with the thread that is its parent. Of a forked one that is the launcher's first thread, which Go keeps, and not the thread
// that has asked for it; of one that is executed it is the thread that has started it.
func TestForkedProcessOutlivesTheThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := serving(t)
	var k *talk
	onItsOwnThread(t, func() { k = fork(t, s) })
	k.answers()
	if got := parent(k.child.Pid); got != os.Getpid() {
		t.Errorf("its parent is %d, want %d", got, os.Getpid())
	}

	executed := exec.Command("sleep", "100")
	executed.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	onItsOwnThread(t, func() {
		if err := executed.Start(); err != nil {
			t.Error(err)
		}
	})
	if err := executed.Wait(); err == nil {
		t.Error("a process that was executed outlives its thread: the test shows nothing")
	}
}

// What dies beside a forked process is not its end: the process that it was forked from, in whatever moment.
func TestForkedProcessOutlivesTheOneBefore(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := serving(t)
	k := fork(t, s)
	k.answers()
	if err := syscall.Kill(s.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.Learn(time.Now(), <-s.Events()) // its end
	k.answers()
	if more := fork(t, s); more.child != nil {
		t.Error("forked from a process that has ended")
	}
	await(t, s) // another one
	fork(t, s).answers()
}

// A request that is given up leads to no process: what was forked for it ends before it has done anything.
func TestGivenUpRequestRunsNothing(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := serving(t)
	if err := syscall.Kill(s.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p := s.process
	s.room.kib = 0
	k := fork(t, s) // it takes no answer
	if k.child != nil || s.PID() != 0 {
		t.Fatal("a process that is stopped has forked, or was not killed")
	}
	if _, err := k.out.ReadString('\n'); err == nil {
		t.Error("somebody writes")
	}
	if s.Close(); parent(p.os.Pid) == os.Getpid() {
		t.Errorf("process %d still runs", p.os.Pid)
	}
}

// An import that hangs is given up, and left out.
func TestImportThatHangs(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, hanging+".py"), []byte("import signal\nsignal.pause()\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHONPATH", dir)
	s := serving(t, hanging)
	if len(s.room.leaveOut) != 1 || s.room.leaveOut[0] != hanging {
		t.Errorf("left out: %q", s.room.leaveOut)
	}
	fork(t, s).answers()
}

// A pipe to nowhere, a number that is no child, a process that goes: each is an error of that one request.
func TestAnswersAreChecked(t *testing.T) {
	for name, tc := range map[string]struct{ answer, want string }{
		"not a child":     {`{"forked":1,"pid":1}`, "is no new child"},
		"the caller":      {fmt.Sprintf(`{"forked":1,"pid":%d}`, os.Getpid()), "is no new child"},
		"failed":          {`{"failed":1,"why":"no memory"}`, "cannot fork: no memory"},
		"changed":         {`{"failed":1,"why":"x.py has changed","changed":true}`, "x.py has changed"},
		"another request": {`{"forked":7,"pid":1}`, "has ended"},
		"nonsense":        {`{}`, "has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, theirs, err := pair()
			if err != nil {
				t.Fatal(err)
			}
			other, err := connOf(theirs)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			sleep := exec.Command("sleep", "100")
			if err := sleep.Start(); err != nil {
				t.Fatal(err)
			}
			p := &process{os: sleep.Process, conn: conn, around: surroundings(), replies: make(chan Message, 1), gone: make(chan struct{}), quit: make(chan struct{})}
			events := make(chan Event, 4)
			var wg sync.WaitGroup
			wg.Go(func() { p.run(events) })
			wg.Go(func() {
				if _, err := other.Read(make([]byte, 100)); err == nil {
					_, _ = other.Write([]byte(tc.answer))
					other.Close()
				}
			})
			child, err := p.fork(nil, nil, patience, func(int) bool { return false })
			if child != nil || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("process %v, %v: want %q", child, err, tc.want)
			}
			p.kill()
			wg.Wait()
		})
	}
	p := &process{around: "elsewhere"}
	if _, err := p.fork(nil, nil, patience, nil); err == nil || !strings.Contains(err.Error(), "control group, limits or folder") {
		t.Errorf("in another control group: %v", err)
	}
}

// What is handed over must be a child of this process that serves its command, and say so.
func TestWhatIsHandedOverIsChecked(t *testing.T) {
	for want, says := range map[string][]string{
		"is no hello, or is not followed by ready": {`{"importing":"torch"}`, `{"ready":1}`},
		"which is not the command":                 {`{"hello":1,"argv":["python","x.py"]}`, `{"ready":1}`},
		"is no child of this one":                  {`{"hello":1,"argv":["python","train.py"]}`, `{"ready":1}`},
		"a message of 0 kinds":                     {`{}`},
		"connection reset":                         {},
	} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range says {
			if err := unix.Send(fds[1], []byte(m), 0); err != nil {
				t.Fatal(err)
			}
		}
		unix.Close(fds[1])
		var log strings.Builder
		s, err := New(Options{Argv: []string{"python", "train.py"}, Given: os.NewFile(uintptr(fds[0]), "given"), Logf: func(format string, a ...any) { fmt.Fprintf(&log, format+"\n", a...) }})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := s.room.Ready(); ok || s.PID() != 0 || !strings.HasPrefix(log.String(), "REPLICAD_PRELOAD_FD: ") || want != "connection reset" && !strings.Contains(log.String(), want) {
			t.Errorf("%q: it says %q, want %q", says, log.String(), want)
		}
		s.Close()
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := connOf(null); err == nil {
		t.Errorf("%v of %s", conn, os.DevNull)
	}
}
