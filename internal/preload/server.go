package preload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// DefaultQuiet is long for an import of what a process has just imported, and lies in the page cache: a module that is found is a word.
const DefaultQuiet = 60 * time.Second

// Options say what the process is one of.
type Options struct {
	Argv     []string                   // the program's command
	Env      []string                   // what all ranks inherit
	Varying  []string                   // names of variables that differ between ranks
	Prefixes []string                   // of such names
	Given    *os.File                   // a connection to a process that serves already; Server takes it
	Again    time.Duration              // from the end of a process to the start of the next one
	Quiet    time.Duration              // without a word of an import, until it is given up
	Known    func(pid int) bool         // whether a process is a running rank's of the caller
	Stdio    func() ([]*os.File, error) // descriptors 0, 1 and 2 of a rank; the caller closes them
	Logf     func(format string, a ...any)
}

// Server has restarts fork from a process that it keeps. The goroutine that made it calls its methods.
type Server struct {
	opt     Options
	room    Room
	process *process // nil: none
	listen  *listener
	events  chan Event
	end     context.CancelFunc
	wg      sync.WaitGroup
}

// New starts to listen for reports.
func New(o Options) (*Server, error) {
	l, err := listen()
	if err != nil {
		return nil, fmt.Errorf("socket for what programs have imported: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	s := &Server{opt: o, room: Room{Argv: o.Argv, Again: o.Again, Quiet: o.Quiet}, listen: l, events: make(chan Event), end: end}
	s.wg.Go(func() { l.run(ctx, s.events) })
	if o.Given != nil {
		s.adopt(o.Given)
	}
	return s, nil
}

// Address is where ranks send their reports.
func (s *Server) Address() string { return s.listen.address }

// Events are what its goroutines see; the owner hands them to Learn.
func (s *Server) Events() <-chan Event { return s.events }

// Learn takes an event in, unless it is of a process that is not there any more.
func (s *Server) Learn(now time.Time, e Event) {
	switch of := e.(type) {
	case Reported:
		of.Child = s.opt.Known(of.Report.PID)
		e = of
	case Said:
		if s.process == nil || of.PID != s.process.os.Pid {
			return
		}
	case Ended:
		if s.process == nil || of.PID != s.process.os.Pid {
			return
		}
		s.process.conn.Close()
		s.process = nil
	}
	s.do(now, s.room.Learn(now, e))
}

// Next is when Step is to be called; zero: never.
func (s *Server) Next() time.Time { return s.room.Next() }

// Step does what is due.
func (s *Server) Step(now time.Time) { s.do(now, s.room.Step(now)) }

// Fork starts a process of the program with this environment and these descriptors. It returns nil where nothing can be forked from: the
// caller starts one that imports by itself.
func (s *Server) Fork(env []string, files []*os.File) *os.Process {
	patience, ok := s.room.Ready()
	if !ok || s.process == nil {
		return nil
	}
	child, err := s.process.fork(env, files, patience, s.opt.Known)
	if err != nil {
		changed, is := errors.AsType[*changedError](err)
		e := NotForked{Why: err.Error(), Changed: is}
		if is {
			e.Why = changed.why
		}
		s.Learn(time.Now(), e)
		return nil
	}
	s.Learn(time.Now(), Forked{})
	return child
}

// PID is the process's; 0 if there is none.
func (s *Server) PID() int {
	if s.process == nil {
		return 0
	}
	return s.process.os.Pid
}

// Close ends the process.
func (s *Server) Close() {
	s.end()
	s.kill()
	s.wg.Wait()
}

func (s *Server) do(now time.Time, effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case Say:
			s.opt.Logf("%s", e.Text)
		case Kill:
			s.kill()
		case Start:
			if err := s.start(e); err != nil {
				s.Learn(now, NotStarted{err.Error()})
			}
		}
	}
}

func (s *Server) kill() {
	if s.process != nil {
		s.process.kill()
		s.process = nil
	}
}

func (s *Server) start(e Start) error {
	stdio, err := s.opt.Stdio()
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range stdio {
			f.Close()
		}
	}()
	changed := map[string]string{} // never nil, as with list
	maps.Copy(changed, e.Report.Changed)
	p, err := start(s.opt.Argv, s.opt.Env, stdio, plan{
		Modules: e.Report.Modules, LeaveOut: list(e.LeaveOut), Own: list(e.Report.Own), Varying: list(s.opt.Varying), Prefixes: list(s.opt.Prefixes), Changed: changed,
	}, e.Report.Folder)
	if err != nil {
		return err
	}
	s.watch(p)
	return nil
}

// list is never nil, which JSON would have as another value.
func list(l []string) []string { return append([]string{}, l...) }

func (s *Server) watch(p *process) {
	s.process = p
	s.wg.Go(func() { p.run(s.events) })
}

// adopt takes a process over that serves already: a child of this process, which says so, and as which command it serves.
func (s *Server) adopt(f *os.File) {
	p, ready, err := s.given(f)
	if err != nil {
		s.opt.Logf("REPLICAD_PRELOAD_FD: %v; ranks are started as without it", err)
		return
	}
	s.watch(p)
	s.do(time.Now(), s.room.Adopt(time.Now(), Said{p.os.Pid, ready}))
}

// helloTime bounds the wait for a process that was handed over.
const helloTime = 10 * time.Second

func (s *Server) given(f *os.File) (p *process, ready Message, err error) {
	conn, err := connOf(f)
	if err != nil {
		return nil, ready, err
	}
	hello, err := readFirst(conn)
	if err == nil {
		ready, err = readFirst(conn)
	}
	switch {
	case err != nil:
	case hello.Hello == 0 || ready.Ready == nil:
		err = errors.New("what its process says first is no hello, or is not followed by ready")
	case !slices.Equal(hello.Argv, latins(s.opt.Argv)):
		err = fmt.Errorf("process %d serves %.200q, which is not the command", hello.Hello, hello.Argv)
	case parent(hello.Hello) != os.Getpid():
		err = fmt.Errorf("process %d is no child of this one", hello.Hello)
	default:
		var child *os.Process
		if child, err = os.FindProcess(hello.Hello); err == nil {
			return &process{os: child, conn: conn, around: surroundings(), replies: make(chan Message, 1), gone: make(chan struct{}), quit: make(chan struct{})}, ready, nil
		}
	}
	conn.Close()
	return nil, ready, err
}
