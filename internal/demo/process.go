package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	maxLine  = 64 << 10 // bytes of a line that are kept; the rest of a longer one is dropped
	tailSize = 12       // last lines of each process that a failure shows
)

// spawner starts every process of the demo from one operating system thread, held for as long as the demo runs: the kernel
// kills a child when the thread that started it ends, so not even SIGKILL of the demo leaves one behind.
type spawner struct {
	work  chan func()
	ended chan struct{}
	wg    sync.WaitGroup // readers of output and waiters for exits

	mu    sync.Mutex // guards procs
	procs []*process
}

// process is one child, in a process group of its own.
type process struct {
	name string
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has been waited for
	read chan struct{} // closed when both its streams have been read to their ends
	told atomic.Bool   // a signal was sent: it is meant to end
	tail tail
	ends []*os.File // our ends of its pipes
}

func newSpawner() *spawner {
	s := &spawner{work: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		for f := range s.work {
			f()
		}
	}()
	return s
}

// start runs a program. Each line of its output goes to log, and to the function for its stream if that is not nil.
func (s *spawner) start(name, log string, env []string, onOut, onErr func(line []byte), program string, args ...string) (*process, error) {
	logFile, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: exec.Command(program, args...), gone: make(chan struct{}), read: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	outR, outW, err1 := os.Pipe()
	errR, errW, err2 := os.Pipe()
	if err = errors.Join(err1, err2); err == nil {
		p.cmd.Stdout, p.cmd.Stderr = outW, errW
		started := make(chan error, 1)
		s.work <- func() { started <- p.cmd.Start() }
		err = <-started
	}
	for _, f := range []*os.File{outW, errW} {
		if f != nil {
			_ = f.Close() // the child has its own
		}
	}
	if err != nil {
		for _, f := range []*os.File{outR, errR, logFile} {
			if f != nil {
				_ = f.Close()
			}
		}
		return nil, fmt.Errorf("start %s (%s): %w", name, program, err)
	}
	p.ends = []*os.File{outR, errR}
	s.mu.Lock()
	s.procs = append(s.procs, p)
	s.mu.Unlock()
	s.follow(p, logFile, outR, errR, onOut, onErr)
	return p, nil
}

// follow reads both streams to their ends and waits for the process.
func (s *spawner) follow(p *process, logFile, outR, errR *os.File, onOut, onErr func([]byte)) {
	var mu sync.Mutex // guards logFile
	var streams sync.WaitGroup
	read := func(r *os.File, fn func([]byte)) {
		eachLine(r, func(line []byte) {
			mu.Lock()
			_, _ = logFile.Write(append(line, '\n')) // a full disk must not stop the demo
			mu.Unlock()
			p.tail.add(string(line))
			if fn != nil {
				fn(line)
			}
		})
	}
	streams.Go(func() { read(outR, onOut) })
	streams.Go(func() { read(errR, onErr) })
	s.wg.Go(func() { streams.Wait(); close(p.read); _ = outR.Close(); _ = errR.Close(); _ = logFile.Close() })
	s.wg.Go(func() { _ = p.cmd.Wait(); close(p.gone) })
}

// eachLine calls fn for each line; what is longer than maxLine is cut. The slice is fn's to keep.
func eachLine(r io.Reader, fn func(line []byte)) {
	br := bufio.NewReaderSize(r, 16<<10)
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		line = append(line, part[:min(len(part), max(0, maxLine-len(line)))]...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if n := len(line); n > 0 && line[n-1] == '\n' {
			line = line[:n-1]
		}
		if len(line) > 0 {
			fn(line)
		}
		if err != nil {
			return
		}
		line = nil
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// spent tells whether the process has ended and all that it said was taken in: its exit alone may be seen before its last words.
func (p *process) spent() bool {
	select {
	case <-p.read:
		return !p.running()
	default:
		return false
	}
}

func (p *process) running() bool {
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// signal reaches the whole group, but only while the process has not been waited for: later its number may be another's.
func (p *process) signal(sig syscall.Signal) {
	if p != nil && p.running() {
		p.told.Store(true)
		_ = syscall.Kill(-p.pid(), sig) // ESRCH: it is ending by itself
	}
}

// kill ends the process and waits for that.
func (p *process) kill() {
	if p != nil {
		p.signal(syscall.SIGKILL)
		<-p.gone
	}
}

// guard has the journal's waiters fail should p end by itself: at all if it is to last, else other than well.
func (s *spawner) guard(p *process, j *journal, lasting bool) {
	s.wg.Go(func() {
		<-p.gone
		<-p.read
		if !p.told.Load() && (lasting || !p.cmd.ProcessState.Success()) {
			j.fail(fmt.Errorf("%s (pid %d) ended by itself: %v; its last lines:\n    %s", p.name, p.pid(), p.cmd.ProcessState, strings.Join(p.tail.last(), "\n    ")))
		}
	})
}

// close ends everything that was started and whatever it left behind, and returns what could not be ended.
func (s *spawner) close() error {
	s.mu.Lock()
	procs := s.procs
	s.mu.Unlock()
	for _, p := range procs {
		p.signal(syscall.SIGKILL)
	}
	for _, p := range procs {
		<-p.gone
	}
	err := reapStrays(5 * time.Second)
	for _, p := range procs {
		for _, f := range p.ends {
			_ = f.SetReadDeadline(time.Now().Add(time.Second)) // a stray that survives must not hold the readers
		}
	}
	s.wg.Wait()
	close(s.work)
	<-s.ended
	return err
}

// tails shows the last lines of every process, for a failure's message.
func (s *spawner) tails() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, p := range s.procs {
		state := "running"
		if !p.running() {
			state = p.cmd.ProcessState.String()
		}
		fmt.Fprintf(&b, "--- %s (pid %d, %s)\n", p.name, p.pid(), state)
		for _, l := range p.tail.last() {
			fmt.Fprintf(&b, "    %s\n", l)
		}
	}
	return b.String()
}

// tail keeps the last lines of a process.
type tail struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (t *tail) add(line string) {
	if len(line) > 400 {
		line = line[:400] + "..."
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == tailSize {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, line)
}

func (t *tail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}

func logPath(dir, name string) string { return filepath.Join(dir, "logs", name+".log") }
