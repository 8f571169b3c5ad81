package launch

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/preload"
)

// A process of the program is started in one of two ways, for ranks, spares and those that wait alike: forked from the one that has imported what
// the program imports, or executed where there is none.

// Preloading, as a value of --preload.
const (
	PreloadAuto = "auto"
	PreloadNone = "none"
)

// newPreload makes what restarts fork from; nil where the options want none, or nothing can be listened on.
func (l *launcher) newPreload() *preload.Server {
	if l.opt.Preload == PreloadNone {
		return nil
	}
	s, err := preload.New(preload.Options{
		Argv: l.opt.Command, Env: l.opt.inherited(), Varying: varying(), Prefixes: []string{"REPLICAD_", "TORCHELASTIC_"}, Given: l.opt.Preloaded, Again: l.opt.preloadAgain, Quiet: preload.DefaultQuiet,
		Known: l.knows, Stdio: func() ([]*os.File, error) { return stdio(l.opt) }, Logf: l.opt.Logf,
	})
	if err != nil {
		l.opt.Logf("restarts import anew: %v", err)
		return nil
	}
	return s
}

// varying are the variables by which processes of one launcher differ.
func varying() []string { return append(append([]string{}, torchNames...), masterNames...) }

// knows tells whether a process is one of the launcher's ranks.
func (l *launcher) knows(pid int) bool {
	for _, c := range l.children {
		if c.os.Pid == pid {
			return true
		}
	}
	for _, c := range l.warm {
		if c.os.Pid == pid {
			return true
		}
	}
	return false
}

// start starts a process of the program with this environment, and descriptors from 3 on. It is forked where that can be and forks says so. It must run on the thread that lives as
// long as the launcher: the parent-death signal of a process that is executed is bound to it.
func (l *launcher) start(forks bool, env []string, extra ...*os.File) (*child, error) {
	out, err := newOutput(l.opt)
	if err != nil {
		return nil, err
	}
	defer out.started()
	if l.preload != nil {
		env = append(env, preloadName+"="+l.preload.Address())
	}
	cmd := exec.Command(l.opt.Command[0], l.opt.Command[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = env, out.files[0], out.files[1], out.files[2], extra
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if forks && l.preload != nil {
		if p := l.preload.Fork(cmd.Environ(), append(append([]*os.File{}, out.files...), extra...)); p != nil {
			return &child{began: time.Now(), os: p, out: out, from: l.preload.PID()}, nil
		}
	}
	if err := cmd.Start(); err != nil {
		out.finish()
		return nil, err
	}
	return &child{began: time.Now(), os: cmd.Process, out: out}, nil
}

// preloadName is where a program's first life finds whom to tell what it has imported (python/src/replicad/_core/preloading.py).
const preloadName = "REPLICAD_PRELOAD"

// output is what one process writes to. Files are passed on as they are; what else is written to has a pipe, and a goroutine that copies.
type output struct {
	files []*os.File // of the process, 0 to 2
	own   []*os.File // of these, what started closes
	pipes []*os.File // ends that are copied from
	grace time.Duration
	wg    sync.WaitGroup
}

func newOutput(o Options) (*output, error) {
	out := &output{grace: o.Grace}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	out.own = append(out.own, null)
	out.files = append(out.files, null)
	for i, w := range []io.Writer{o.Stdout, o.Stderr} {
		if f, is := w.(*os.File); is {
			out.files = append(out.files, f)
			continue
		}
		if w == nil {
			out.files = append(out.files, null)
			continue
		}
		if i == 1 && same(o.Stdout, o.Stderr) {
			out.files = append(out.files, out.files[1])
			continue
		}
		r, p, err := os.Pipe()
		if err != nil {
			out.started()
			out.finish()
			return nil, err
		}
		out.own, out.pipes, out.files = append(out.own, p), append(out.pipes, r), append(out.files, p)
		out.wg.Go(func() { _, _ = io.Copy(w, r) }) // as with exec.Cmd, it ends with the pipe
	}
	return out, nil
}

// same tells whether both are one writer, whose writes must not cut into each other.
func same(a, b io.Writer) (equal bool) {
	defer func() { _ = recover() }() // of types that cannot be compared
	return a == b
}

// started closes what the process has by now.
func (o *output) started() {
	for _, f := range o.own {
		f.Close()
	}
	o.own = nil
}

// finish waits until all that the process has written is copied, but not for ever: a grandchild may have kept the pipe.
func (o *output) finish() {
	o.started()
	timer := time.AfterFunc(o.grace, func() {
		for _, r := range o.pipes {
			_ = r.SetReadDeadline(time.Unix(1, 0)) // ends the copy
		}
	})
	o.wg.Wait()
	timer.Stop()
	for _, r := range o.pipes {
		r.Close()
	}
}

// stdio are files of the kinds that a rank has, of which nobody reads.
func stdio(o Options) (files []*os.File, err error) {
	out, err := newOutput(Options{})
	if err != nil {
		return nil, err
	}
	files = out.files[:1]
	for _, w := range []io.Writer{o.Stdout, o.Stderr} {
		f, err := of(w)
		if err != nil {
			return nil, errors.Join(err, closeAll(files))
		}
		files = append(files, f)
	}
	return files, nil
}

// of is a file of the kind that a rank has for a writer.
func of(w io.Writer) (*os.File, error) {
	if w == nil {
		return os.OpenFile(os.DevNull, os.O_RDWR, 0)
	}
	f, is := w.(*os.File)
	if !is {
		r, p, err := os.Pipe()
		if err == nil {
			r.Close()
		}
		return p, err
	}
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func closeAll(files []*os.File) (err error) {
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}
