package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// reporting is a program that reports itself as the Python package would, and writes who its parent and its group are. It ends when it is killed.
const reporting = `
import json, os, signal, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect("\0" + os.environ["REPLICAD_PRELOAD"][1:])
s.sendall(json.dumps({"pid": os.getpid(), "argv": sys.orig_argv, "isolated": False, "folder": %q, "modules": %s, "own": [], "changed": {}}).encode())
s.close()
print("LIFE", os.getpid(), os.getppid(), os.getpgid(0), os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
signal.pause()
`

// preloading is a launcher of one rank whose program reports these modules.
type preloading struct {
	*job
	p   *peer
	out *logger
	pid int
}

func preloads(t *testing.T, modules string, change ...func(*Options)) *preloading {
	t.Helper()
	name, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output() // python3 may be a script that executes it
	if err != nil {
		t.Skipf("python3: %v", err)
	}
	python := strings.TrimSpace(string(name))
	folder, err := filepath.Abs(filepath.Join("..", "..", "python", "src", "replicad", "_preload"))
	if err != nil {
		t.Fatal(err)
	}
	d, out := newDaemon(t), &logger{}
	j := run(d, 1, "", append([]func(*Options){func(o *Options) {
		o.Command, o.Stdout, o.Stderr, o.preloadAgain = []string{python, "-c", fmt.Sprintf(reporting, folder, modules)}, out, out, time.Millisecond
	}}, change...)...)
	return &preloading{job: j, p: d.welcome(), out: out}
}

func (l *logger) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// start has the rank started, and returns what its process says of itself.
func (s *preloading) start() (ppid, group int) {
	s.t.Helper()
	s.p.start(replica.Rank(0), 1)
	s.pid = int(s.p.running().PID)
	line := regexp.MustCompile(fmt.Sprintf(`LIFE %d (\d+) (\d+) 0 \d+\n`, s.pid))
	for deadline := time.Now().Add(patience); ; runtimeYield() {
		if m := line.FindStringSubmatch(s.out.String()); m != nil {
			ppid, _ = strconv.Atoi(m[1])
			group, _ = strconv.Atoi(m[2])
			return ppid, group
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("process %d says nothing of itself, but:\n%s\n%s", s.pid, s.log, s.out)
		}
	}
}

// kill ends the rank's process, which must be reported.
func (s *preloading) kill() {
	s.t.Helper()
	if err := syscall.Kill(s.pid, syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	if x := s.p.exited(); x.Status != 128+int32(syscall.SIGKILL) || int(x.PID) != s.pid {
		s.t.Fatalf("%+v of process %d, which was killed", x, s.pid)
	}
}

// servers are the processes that restarts could fork from so far.
func (s *preloading) servers() (pids []int) {
	for _, m := range regexp.MustCompile(`restarts fork from process (\d+)`).FindAllStringSubmatch(s.log.String(), -1) {
		pid, _ := strconv.Atoi(m[1])
		pids = append(pids, pid)
	}
	return pids
}

// server waits for the n-th of them.
func (s *preloading) server(n int) int {
	s.t.Helper()
	for deadline := time.Now().Add(patience); len(s.servers()) < n; runtimeYield() {
		if time.Now().After(deadline) {
			s.t.Fatalf("no process to fork from, but:\n%s\n%s", s.log, s.out)
		}
	}
	return s.servers()[n-1]
}

func (s *preloading) forks() int { return strings.Count(s.log.String(), "forked from process") }

func (s *preloading) end() {
	s.t.Helper()
	s.p.done(1, "stopped")
	s.p.exited()
	if code, err := s.wait(); code != 1 || err != nil {
		s.t.Errorf("code %d, %v", code, err)
	}
}

// Restarts are forked, and children of the launcher as any other.
func TestForkedStarts(t *testing.T) {
	s := preloads(t, `["json", "decimal"]`)
	s.start()
	first := s.pid
	s.server(1)
	for range 2 {
		s.kill()
		ppid, group := s.start()
		if ppid != os.Getpid() || group != s.pid || s.pid == first {
			t.Errorf("process %d has parent %d and group %d, want %d and its own", s.pid, ppid, group, os.Getpid())
		}
	}
	if s.forks() != 2 {
		t.Errorf("%d forks:\n%s", s.forks(), s.log)
	}
	s.end()
}

// A rank whose last process ended before it attached is started anew: that it was forked may be why.
func TestForkedNotTwice(t *testing.T) {
	s := preloads(t, `["json"]`)
	s.start()
	s.server(1)
	s.kill()
	s.start()
	s.kill()
	s.p.startAgain(0, 1, 1)
	s.pid = int(s.p.running().PID)
	if s.forks() != 1 {
		t.Errorf("%d forks:\n%s", s.forks(), s.log)
	}
	s.end()
}

// Without a process to fork from a start imports, and another such process is made.
func TestForkedStartsGoOn(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			s := preloads(t, `["json"]`)
			s.start()
			if err := syscall.Kill(s.server(1), sig); err != nil {
				t.Fatal(err)
			}
			s.kill()
			s.start()
			s.server(2)
			s.kill()
			s.start()
			log := s.log.String()
			if n := s.forks(); n != 1 && !(sig == syscall.SIGKILL && n == 2) { // it may be there again before the first one is started
				t.Errorf("%d forks:\n%s", n, log)
			}
			if sig == syscall.SIGSTOP && !strings.Contains(log, "has not answered within 2.") {
				t.Errorf("nothing of a silent process in\n%s", log)
			}
			s.end()
		})
	}
}

func TestNothingIsForkedFrom(t *testing.T) {
	for name, tc := range map[string]struct {
		modules string
		change  func(*Options)
		said    string
	}{
		"none":       {`["json"]`, func(o *Options) { o.Preload = PreloadNone; o.Env = append(o.Env, "REPLICAD_PRELOAD=@") }, ""},
		"no package": {`[]`, func(*Options) {}, "the program has imported no package"},
		"a script": {`["json"]`, func(o *Options) {
			o.Command = append([]string{"sh", "-c", `"$0" "$@"; exit $?`}, o.Command...)
		}, "stands between"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "none" {
				if o := (Options{Preload: "x"}); !strings.Contains(o.Validate().Error(), `--preload "x": want auto or none`) {
					t.Error(o.Validate())
				}
				d := newDaemon(t)
				j := run(d, 1, `[ -z "$REPLICAD_PRELOAD" ] || exit 9`, tc.change)
				p := d.welcome()
				p.start(0, 1)
				p.running()
				if x := p.exited(); x.Status != 0 {
					t.Errorf("exit %+v: it was told where to report", x)
				}
				p.done(0, "finished")
				if code, err := j.wait(); code != 0 || err != nil {
					t.Errorf("code %d, %v", code, err)
				}
				return
			}
			s := preloads(t, tc.modules, tc.change)
			s.p.start(0, 1)
			s.pid = int(s.p.running().PID)
			s.log.await(t, "restarts import anew, since ")
			s.log.await(t, tc.said)
			s.end()
		})
	}
}

// Output that goes through a pipe is copied whole, from forks too, and both streams into one writer one after the other.
func TestOutputs(t *testing.T) {
	d, out := newDaemon(t), &logger{}
	j := run(d, 1, "echo one; echo two >&2; sleep 100 & exit 3", func(o *Options) { o.Stdout, o.Stderr, o.Grace = out, out, time.Hour })
	p := d.welcome()
	p.start(0, 1)
	p.running()
	if x := p.exited(); x.Status != 3 { // what the process left behind, which holds the pipe, is killed
		t.Errorf("exit %+v", x)
	}
	if got := out.String(); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
	p.done(0, "finished")
	if code, err := j.wait(); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}
