package preload

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/replicad/replicad/internal/unixsock"
	"golang.org/x/sys/unix"
)

// serveFD is the descriptor that the process talks on, and its environment's name for it.
const serveFD, serveName = 3, "REPLICAD_PRELOAD_SERVE"

// process is one that imports and then serves forks. Its goroutine reads what it says, and reaps it.
type process struct {
	os      *os.Process
	group   bool // it leads a process group
	conn    *net.UnixConn
	around  string // what a child inherits of the launcher, when it was started
	replies chan Message
	gone    chan struct{} // closed when it says nothing any more
	quit    chan struct{} // closed by kill: nobody waits for its events
	killed  sync.Once
	asked   uint64 // requests so far
}

// pair is a connection and the descriptor of its other end.
func pair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "preload"), os.NewFile(uintptr(fds[1]), "preload")
	conn, err := connOf(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// connOf makes a connection of a descriptor, which it takes.
func connOf(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok || conn.LocalAddr().Network() != "unixpacket" {
		c.Close()
		return nil, errors.New("not a socket of kind SOCK_SEQPACKET")
	}
	return conn, nil
}

// start starts a process as the program's, and tells it what to import. It must run on a thread that lives as long as the caller, to
// which the kernel binds the process's life. stdio are the files that a rank gets, since Python looks at what they are.
func start(argv, env []string, stdio []*os.File, p plan, folder string) (*process, error) {
	conn, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(slices.Clone(env), "PYTHONPATH="+pythonPath(env, folder), fmt.Sprintf("%s=%d", serveName, serveFD))
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = stdio[0], stdio[1], stdio[2], []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, err
	}
	made := &process{os: cmd.Process, group: true, conn: conn, around: surroundings(), replies: make(chan Message, 1), gone: make(chan struct{}), quit: make(chan struct{})}
	if err := made.send(p, nil); err != nil {
		made.kill()
		_, _ = made.os.Wait() // it was killed
		return nil, err
	}
	return made, nil
}

// pythonPath is the environment's with a folder before it.
func pythonPath(env []string, folder string) string {
	for _, e := range slices.Backward(env) {
		if path, ok := strings.CutPrefix(e, "PYTHONPATH="); ok && path != "" {
			return folder + ":" + path
		}
	}
	return folder
}

// surroundings are what a child inherits beside descriptors, environment and memory, and what somebody may have changed since.
func surroundings() string {
	var all strings.Builder
	for _, name := range []string{"cgroup", "limits", "oom_score_adj"} {
		b, err := os.ReadFile("/proc/self/" + name)
		fmt.Fprintf(&all, "%s %v\n", b, err)
	}
	folder, err := os.Getwd()
	fmt.Fprintln(&all, folder, err)
	return all.String()
}

// run reads what the process says until it ends; the process is reaped when it returns.
func (p *process) run(events chan<- Event) {
	said := p.read(events)
	close(p.gone)
	_ = p.os.Kill() // it may have closed its socket only
	state, err := p.os.Wait()
	p.killGroup()
	how := fmt.Sprint(state)
	if err != nil {
		how = err.Error()
	}
	if said != nil {
		how += "; " + said.Error()
	}
	p.emit(events, Ended{p.os.Pid, how})
}

// read returns at the end of the socket, or with what is no message.
func (p *process) read(events chan<- Event) error {
	buf := make([]byte, maxMessage+1)
	for {
		b, files, _, _, err := unixsock.Receive(p.conn, buf)
		unixsock.CloseAll(files)
		if err != nil || len(b) == 0 {
			return nil //nolint:nilerr // the process's end says more
		}
		m, err := ParseMessage(b)
		if err != nil {
			return fmt.Errorf("it said what is no message: %w", err)
		}
		if m.Forked == 0 && m.Failed == 0 {
			if !p.emit(events, Said{p.os.Pid, m}) {
				return nil
			}
			continue
		}
		select {
		case p.replies <- m:
		default: // nobody has asked
		}
	}
}

func (p *process) emit(events chan<- Event, e Event) bool {
	select {
	case events <- e:
		return true
	case <-p.quit:
		return false
	}
}

// kill ends the process; nothing is heard of it any more.
func (p *process) kill() {
	p.killed.Do(func() { close(p.quit) })
	_ = p.os.Kill()
	p.killGroup()
	p.conn.Close()
}

// killGroup ends what imports left behind.
func (p *process) killGroup() {
	if p.group {
		_ = syscall.Kill(-p.os.Pid, syscall.SIGKILL)
	}
}

// send sends an object in a memfd, and files after it.
func (p *process) send(object any, files []*os.File) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err
	}
	if len(b) > maxPayload {
		return fmt.Errorf("%d bytes of environment: at most %d", len(b), maxPayload)
	}
	fd, err := unix.MemfdCreate("replicad-preload", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	payload := os.NewFile(uintptr(fd), "payload")
	defer payload.Close()
	if _, err := payload.Write(b); err != nil {
		return err
	}
	fds := make([]int, 0, 1+len(files))
	for _, f := range append([]*os.File{payload}, files...) {
		fds = append(fds, int(f.Fd()))
	}
	_, _, err = p.conn.WriteMsgUnix([]byte("memfd"), unix.UnixRights(fds...), nil)
	return err
}

// changedError is the process's word that it must not be used any more.
type changedError struct{ why string }

func (e *changedError) Error() string { return e.why }

// fork asks for a process with these files as its descriptors, from 0 on. It is a child of this one and has its own process group. On an error
// there is none, and there will be none.
func (p *process) fork(env []string, files []*os.File, patience time.Duration, known func(pid int) bool) (*os.Process, error) {
	if p.around != surroundings() {
		return nil, &changedError{"the launcher's control group, limits or folder are not what they were when its process for restarts was started"}
	}
	r, goOn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer goOn.Close() // without a byte before it, it ends the forked process
	defer r.Close()
	restore, err := adoptOrphans()
	if err != nil {
		return nil, err
	}
	defer restore()
	p.asked++
	ask := request{Fork: p.asked, Launcher: os.Getpid(), Env: latins(env), Targets: make([]int, len(files))}
	for i := range files {
		ask.Targets[i] = i
	}
	if err := p.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if err := p.send(ask, append([]*os.File{r}, files...)); err != nil {
		return nil, err
	}
	pid, err := p.answer(patience)
	if err != nil {
		return nil, err
	}
	if known(pid) || pid == p.os.Pid || parent(pid) != os.Getpid() {
		return nil, fmt.Errorf("process %d, which it names as forked, is no new child of the launcher", pid)
	}
	if err := syscall.Setpgid(pid, pid); err != nil {
		return nil, fmt.Errorf("process group of %d: %w", pid, err)
	}
	child, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	if _, err := goOn.Write([]byte{1}); err != nil {
		return nil, err
	}
	return child, nil
}

// answer waits for the process id that the last request has led to.
func (p *process) answer(patience time.Duration) (int, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case m := <-p.replies:
			if m.Forked == p.asked || m.Failed == p.asked {
				return p.outcome(m)
			}
		case <-p.gone:
			select {
			case m := <-p.replies: // its last word
				if m.Forked == p.asked || m.Failed == p.asked {
					return p.outcome(m)
				}
			default:
			}
			return 0, fmt.Errorf("process %d, which restarts fork from, has ended", p.os.Pid)
		case <-timer.C:
			return 0, fmt.Errorf("process %d, which restarts fork from, has not answered within %v", p.os.Pid, patience)
		}
	}
}

// outcome is what an answer comes to.
func (p *process) outcome(m Message) (int, error) {
	switch {
	case m.Failed == 0 && m.PID > 0:
		return m.PID, nil
	case m.Changed:
		return 0, &changedError{m.Why}
	}
	return 0, fmt.Errorf("process %d cannot fork: %s", p.os.Pid, m.Why)
}

// adopting is held while this process takes orphans in: that is a property of the process, and restore must not end another request's.
// Its field is what the kernel said before: a variable on a stack may move while the kernel has its address.
var adopting struct {
	sync.Mutex
	was int32
}

// adoptOrphans makes this process the parent of what its descendants leave behind, until restore is called.
func adoptOrphans() (restore func(), err error) {
	adopting.Lock()
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&adopting.was)), 0, 0, 0); err != nil {
		adopting.Unlock()
		return nil, fmt.Errorf("subreaper: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		adopting.Unlock()
		return nil, fmt.Errorf("subreaper: %w", err)
	}
	return func() {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, uintptr(adopting.was), 0, 0, 0) // as before it
		adopting.Unlock()
	}, nil
}

// parent is a process's; 0 if there is no such process.
func parent(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b[max(strings.LastIndexByte(string(b), ')'), 0):]), " ")
	var state string
	var ppid int
	if _, err := fmt.Sscan(rest, &state, &ppid); err != nil {
		return 0
	}
	return ppid
}

// readFirst reads one of the first messages of a process that was handed over.
func readFirst(conn *net.UnixConn) (Message, error) {
	if err := conn.SetReadDeadline(time.Now().Add(helloTime)); err != nil {
		return Message{}, err
	}
	b, files, _, _, err := unixsock.Receive(conn, make([]byte, maxMessage+1))
	unixsock.CloseAll(files)
	if err != nil {
		return Message{}, err
	}
	m, err := ParseMessage(b)
	return m, errors.Join(err, conn.SetReadDeadline(time.Time{}))
}
