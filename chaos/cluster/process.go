package cluster

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

// Spawner starts every process from one operating system thread, held for as long as it runs: the kernel
// kills a child when the thread that started it ends, so not even SIGKILL of this process leaves one behind.
type Spawner struct {
	work  chan func()
	ended chan struct{}
	wg    sync.WaitGroup // readers of output and waiters for exits

	mu    sync.Mutex // guards procs
	procs []*Process
}

// Process is one child, in a process group of its own.
type Process struct {
	Name string
	cmd  *exec.Cmd
	Gone chan struct{} // closed when it has been waited for
	read chan struct{} // closed when its output has been read to the end
	told atomic.Bool   // a signal was sent: it is meant to end
	tail tail
	ends []*os.File // our ends of its pipes
}

// NewSpawner starts the thread.
func NewSpawner() *Spawner {
	s := &Spawner{work: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		for f := range s.work {
			f()
		}
	}()
	return s
}

// Do runs fn on the thread that starts processes: they inherit what it changes there, the view of mounted file systems for one.
func (s *Spawner) Do(fn func() error) error {
	done := make(chan error, 1)
	s.work <- func() { done <- fn() }
	return <-done
}

// Output says who takes in what a process says, line by line; nobody where a function is nil.
type Output struct {
	Out, Err func(line []byte) // of its two streams, each a pipe of its own: their lines may overtake each other
	Both     func(line []byte) // instead of them: of both streams in one pipe, in the order in which the process wrote them
}

// pipe is one way from a process to who listens.
type pipe struct {
	r, w *os.File
	hear func(line []byte)
}

// pipes are those for standard output, first, and for standard error, last; if one cannot be had, none is left open.
func (o Output) pipes() (list []pipe, err error) {
	hear := []func([]byte){o.Out, o.Err}
	if o.Both != nil {
		hear = []func([]byte){o.Both}
	}
	for _, fn := range hear {
		r, w, err := os.Pipe()
		if err != nil {
			for _, p := range list {
				_ = p.r.Close()
				_ = p.w.Close()
			}
			return nil, err
		}
		list = append(list, pipe{r, w, fn})
	}
	return list, nil
}

// Start runs a program. Each line of its output goes to the file log, and to who is to take it in.
func (s *Spawner) Start(name, log string, env []string, out Output, program string, args ...string) (*Process, error) {
	return s.StartAs(0, name, log, env, out, program, args...)
}

// StartAs is Start as another user, which only root can be for a process; 0 is this process' own.
func (s *Spawner) StartAs(user uint32, name, log string, env []string, out Output, program string, args ...string) (*Process, error) {
	logFile, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, cmd: exec.Command(program, args...), Gone: make(chan struct{}), read: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if user != 0 {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	}
	pipes, err := out.pipes()
	if err == nil {
		p.cmd.Stdout, p.cmd.Stderr = pipes[0].w, pipes[len(pipes)-1].w
		err = s.Do(p.cmd.Start)
	}
	for _, pipe := range pipes {
		_ = pipe.w.Close() // the child has its own
	}
	if err != nil {
		for _, pipe := range pipes {
			_ = pipe.r.Close()
		}
		_ = logFile.Close()
		return nil, fmt.Errorf("start %s (%s): %w", name, program, err)
	}
	for _, pipe := range pipes {
		p.ends = append(p.ends, pipe.r)
	}
	s.mu.Lock()
	s.procs = append(s.procs, p)
	s.mu.Unlock()
	s.follow(p, logFile, pipes)
	return p, nil
}

// follow reads the output to its end and waits for the process.
func (s *Spawner) follow(p *Process, logFile *os.File, pipes []pipe) {
	var mu sync.Mutex // guards logFile
	var streams sync.WaitGroup
	for _, pipe := range pipes {
		streams.Go(func() {
			defer pipe.r.Close()
			eachLine(pipe.r, func(line []byte) {
				mu.Lock()
				_, _ = logFile.Write(append(line, '\n')) // a full disk must not stop it
				mu.Unlock()
				p.tail.add(string(line))
				if pipe.hear != nil {
					pipe.hear(line)
				}
			})
		})
	}
	s.wg.Go(func() { streams.Wait(); close(p.read); _ = logFile.Close() })
	s.wg.Go(func() { _ = p.cmd.Wait(); close(p.Gone) })
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

// PID is its number, also when it has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Last are its last lines.
func (p *Process) Last() []string { return p.tail.last() }

// State is how it ended; it has.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Told tells whether it was sent a signal to end by.
func (p *Process) Told() bool { return p.told.Load() }

// Spent tells whether the process has ended and all that it said was taken in: its exit alone may be seen before its last words.
func (p *Process) Spent() bool {
	select {
	case <-p.read:
		return !p.Running()
	default:
		return false
	}
}

// Running tells whether it has not been waited for.
func (p *Process) Running() bool {
	select {
	case <-p.Gone:
		return false
	default:
		return true
	}
}

// Signal reaches the whole group, but only while the process has not been waited for: later its number may be another's.
func (p *Process) Signal(sig syscall.Signal) {
	if p != nil && p.Running() {
		if sig != syscall.SIGSTOP && sig != syscall.SIGCONT {
			p.told.Store(true)
		}
		_ = syscall.Kill(-p.PID(), sig) // ESRCH: it is ending by itself
	}
}

// wait waits for its end.
func (p *Process) wait(patience time.Duration) {
	if p == nil {
		return
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.Gone:
	case <-t.C:
	}
}

// Kill ends the process and waits for that.
func (p *Process) Kill() {
	if p != nil {
		p.Signal(syscall.SIGKILL)
		<-p.Gone
	}
}

// Ended calls fn once p has ended and all that it said was taken in.
func (s *Spawner) Ended(p *Process, fn func()) {
	s.wg.Go(func() {
		<-p.Gone
		<-p.read
		fn()
	})
}

// Guard has the journal's waiters fail should p end by itself: at all if it is to last, else other than well.
func (s *Spawner) Guard(p *Process, j *Journal, lasting bool) {
	s.Ended(p, func() {
		if !p.told.Load() && (lasting || !p.cmd.ProcessState.Success()) {
			j.Fail(fmt.Errorf("%s (pid %d) ended by itself: %v; its last lines:\n    %s", p.Name, p.PID(), p.cmd.ProcessState, strings.Join(p.tail.last(), "\n    ")))
		}
	})
}

// Close ends everything that was started and whatever it left behind, and returns what could not be ended.
func (s *Spawner) Close() error {
	s.mu.Lock()
	procs := s.procs
	s.mu.Unlock()
	for _, p := range procs {
		p.Signal(syscall.SIGKILL)
	}
	for _, p := range procs {
		<-p.Gone
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

// Tails shows the last lines of every process, for a failure's message.
func (s *Spawner) Tails() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, p := range s.procs {
		state := "running"
		if !p.Running() {
			state = p.cmd.ProcessState.String()
		}
		fmt.Fprintf(&b, "--- %s (pid %d, %s)\n", p.Name, p.PID(), state)
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

func LogPath(dir, name string) string { return filepath.Join(dir, "logs", name+".log") }
