package ranklife

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/replicad/replicad/chaos/hostile"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/internal/session"
)

// The test binary runs again as a rank where this is set: on the Go binding, or as chaos/hostile has one.
const envRank = "RANKLIFE_RANK"

// goRank is that rank; nil: this binary was built without cgo.
var goRank func(in io.Reader, out io.Writer) error

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(envRank) {
	case "":
		leakcheck.Main(m)
		return
	case "go":
		err = goRank(os.Stdin, os.Stdout)
	case "hostile":
		err = hostile.BeRank("die", 0, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

const root = "../.."

// clients make the command of a rank's program, or skip with what is missing.
var clients = map[string]func(t *testing.T) *exec.Cmd{"c": inC, "go": inGo, "python": inPython}

func inC(t *testing.T) *exec.Cmd {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("there is no gcc here: CI has one, and plays this")
	}
	library := filepath.Join(root, "libreplicad/build/libreplicad.a")
	if _, err := os.Stat(library); err != nil {
		t.Skipf("%v: make lib builds it, and make test does so first", err)
	}
	program := filepath.Join(t.TempDir(), "rank")
	include := "-I" + filepath.Join(root, "libreplicad/include")
	build := exec.Command(cc, "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", include, "testdata/rank.c", library,
		"-lpthread", "-o", program)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	return exec.Command(program)
}

func inGo(t *testing.T) *exec.Cmd {
	if goRank == nil {
		t.Skip("this test was built without cgo, which the Go binding needs: CI has it, and plays this")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRank+"=go")
	return cmd
}

func inPython(t *testing.T) *exec.Cmd {
	python, err := filepath.Abs(filepath.Join(root, ".venv/bin/python"))
	if err == nil {
		_, err = os.Stat(python)
	}
	if err != nil {
		t.Skipf("%v: make set-up makes it, and make test does so first", err)
	}
	source, err := filepath.Abs(filepath.Join(root, "python/src"))
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(root, "libreplicad/build/libreplicad.so")
	if library, err = filepath.Abs(library); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(library); err != nil {
		t.Skipf("%v: make lib builds it, and make test does so first", err)
	}
	cmd := exec.Command(python, "testdata/rank.py")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+source, "REPLICAD_LIBRARY="+library, "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// process is a rank's program that runs.
type process struct {
	in      io.WriteCloser
	kill    func() error
	answers chan string
}

func (p *process) Do(command string) error {
	if command == "die" {
		return p.kill()
	}
	_, err := io.WriteString(p.in, command+"\n")
	return err
}

func (p *process) Answers() <-chan string { return p.answers }

// start starts a rank's program, which ends with the test.
func start(t *testing.T, cmd *exec.Cmd, socket string) *process {
	t.Helper()
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "REPLICAD_SOCKET="+socket, "REPLICAD_JOB="+JobName)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &process{in, cmd.Process.Kill, make(chan string, 64)}
	var reads sync.WaitGroup
	reads.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.answers <- lines.Text()
		}
	})
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		reads.Wait()
		_ = cmd.Wait()
	})
	return p
}

// sockets is a node whose ranks come through a socket.
type sockets struct {
	t      *testing.T
	path   string
	server *session.Server
	stop   context.CancelFunc
	ended  chan error
}

func listen(t *testing.T) *sockets {
	t.Helper()
	dir, err := os.MkdirTemp("", "rl") // t.TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &sockets{t: t, path: filepath.Join(dir, "ranks.sock")}
	n.Return()
	t.Cleanup(n.Leave)
	return n
}

func (n *sockets) Events() <-chan session.Event { return n.server.Events() }

func (n *sockets) Watch(p session.Peer) error { return n.server.Watch(p.PID(), p.StartTime()) }

func (n *sockets) Leave() {
	if n.stop == nil {
		return
	}
	n.stop()
	if err := <-n.ended; err != nil {
		n.t.Error(err)
	}
	n.stop = nil
}

func (n *sockets) Return() {
	server, err := session.Listen(session.Config{Path: n.path})
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	n.server, n.stop, n.ended = server, stop, make(chan error, 1)
	go func() { n.ended <- server.Run(ctx) }()
}

func table(t *testing.T) []Scenario {
	t.Helper()
	text, err := os.ReadFile("testdata/lives.txt")
	if err != nil {
		t.Fatal(err)
	}
	list, err := Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestLives plays the table against each client: all of them send the same messages in the same order, and have the same lives.
func TestLives(t *testing.T) {
	list := table(t)
	for name, program := range clients {
		t.Run(name, func(t *testing.T) {
			cmd := program(t)
			for _, s := range list {
				if why, is := s.Without[name]; is {
					t.Logf("%s: %s", s.Name, why) // the table has the reason: no test is skipped that could run
					continue
				}
				t.Run(s.Name, func(t *testing.T) {
					n, again := listen(t), *cmd
					Play(t, s, n, start(t, &again, n.path))
				})
			}
		})
	}
}

// TestHostile: the rank of chaos/hostile is as any other until it misbehaves. Else it would be turned away before its attack.
func TestHostile(t *testing.T) {
	n := listen(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRank+"=hostile", "REPLICAD_RANK=0", "REPLICAD_WORLD=1")
	start(t, cmd, n.path)
	Play(t, scenario(t, "its process dies while it waits"), n, nil)
}

func scenario(t *testing.T, name string) Scenario {
	t.Helper()
	for _, s := range table(t) {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("the table has no scenario %q", name)
	return Scenario{}
}
