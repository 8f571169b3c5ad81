package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// acting is an Agent, and torchrun's side of it.
type acting struct {
	t   *testing.T
	in  *io.PipeWriter
	out *bufio.Scanner
	log *logger
	end chan error
}

func newAgent(t *testing.T, d *daemon, nodes int, change ...func(*Options)) *acting {
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	a := &acting{t: t, in: stdin, out: bufio.NewScanner(stdout), log: &logger{}, end: make(chan error, 1)}
	o := Options{Socket: d.path, Job: "lm", World: 4, Token: "secret", Command: []string{"true"}, Logf: a.log.printf}
	for _, c := range change {
		c(&o)
	}
	go func() {
		_, err := Agent(context.WithoutCancel(t.Context()), o, nodes, in, out)
		out.Close()
		in.Close()
		a.end <- err
	}()
	t.Cleanup(func() { stdin.Close() })
	return a
}

func (a *acting) says(line string) {
	a.t.Helper()
	if _, err := io.WriteString(a.in, line+"\n"); err != nil {
		a.t.Fatal(err)
	}
}

func (a *acting) hears() (line map[string]any) {
	a.t.Helper()
	if !a.out.Scan() {
		a.t.Fatalf("it says nothing any more: %v", <-a.end)
	}
	if err := json.Unmarshal(a.out.Bytes(), &line); err != nil {
		a.t.Fatal(err)
	}
	return line
}

func (a *acting) heard(want map[string]any) {
	a.t.Helper()
	if got := a.hears(); !reflect.DeepEqual(got, want) {
		a.t.Fatalf("it hears %v, want %v", got, want)
	}
}

func (a *acting) logged(text string) bool {
	return strings.Contains(a.log.String(), text)
}

// agent is what the daemon is told.
func (p *peer) agent() wire.Agent {
	p.t.Helper()
	a, err := wire.ParseAgent(p.want(wire.MRunAgent))
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

func (p *peer) round(r wire.Round) {
	p.t.Helper()
	p.send(wire.MRunRound, r.Append(nil))
}

func TestAgentGoesThroughRounds(t *testing.T) {
	d := newDaemon(t)
	a := newAgent(t, d, 2, func(o *Options) { o.Named = true })
	p, hello := d.accept()
	if hello.Capacity != 0 || !hello.Spare || hello.World != 4 || hello.Flags&wire.RunNameGroups == 0 {
		t.Errorf("hello %+v", hello)
	}
	p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI, Job: replica.JobID{1}}.Append(nil))
	env, _ := a.hears()["env"].(map[string]any)
	if env["REPLICAD_JOB"] != "lm" || env["REPLICAD_GROUPS"] != "auto" || env["REPLICAD_TOKEN"] != "secret" || env["REPLICAD_SOCKET"] != d.path || env["REPLICAD_AGENT"] == nil {
		t.Errorf("environment %v", env)
	}

	a.says(`{"join": "127.0.0.1:1"}`)
	is := p.agent()
	if want := (wire.Agent{ID: is.ID, Nodes: 2, Address: "127.0.0.1:1"}); is != want || is.ID != env["REPLICAD_AGENT"] {
		t.Errorf("it stands in %+v, want %+v", is, want)
	}
	p.round(wire.Round{ID: is.ID, Text: "waiting for one more"})
	p.round(wire.Round{ID: "0123456789abcdef", Number: 6, Head: "x:1"}) // of a launcher that had this socket before
	p.round(wire.Round{ID: is.ID, Number: 7, Rank: 1, Head: "x:1"})
	a.heard(map[string]any{"round": 7.0, "rank": 1.0, "head": "x:1"})
	in := p.agent()
	if want := (wire.Agent{ID: is.ID, Nodes: 2, Address: "127.0.0.1:1", Round: 7, Rank: 1, Head: "x:1"}); in != want || !a.logged("waiting for one more") {
		t.Errorf("it stands in %+v, want %+v", in, want)
	}

	// A daemon that comes back is told, and changes nothing.
	p.conn.Close()
	p, hello = d.accept()
	if hello.Joined != (replica.JobID{1}) {
		t.Errorf("it comes back to %v", hello.Joined)
	}
	p.send(wire.MRunOK, wire.Welcome{ABI: wire.RankABI, Job: replica.JobID{1}}.Append(nil))
	if got := p.agent(); got != in {
		t.Errorf("it stands in %+v, want %+v", got, in)
	}
	p.round(wire.Round{ID: is.ID, Number: 7, Rank: 1, Head: "x:1", Waits: 1})
	a.heard(map[string]any{"waiting": 1.0})

	a.says(`{"join": "127.0.0.1:2"}`)
	if got, want := p.agent(), (wire.Agent{ID: is.ID, Nodes: 2, Address: "127.0.0.1:2", Left: 7}); got != want {
		t.Errorf("it stands in %+v, want %+v", got, want)
	}
	p.round(wire.Round{ID: is.ID, Number: 7, Rank: 1, Head: "x:1", Waits: 1}) // sent before the leader knew
	p.round(wire.Round{ID: is.ID, Number: 8, Head: "127.0.0.1:2"})
	a.heard(map[string]any{"round": 8.0, "rank": 0.0, "head": "127.0.0.1:2"})
	p.agent()

	a.says(`{"close": true}`)
	if got := p.agent(); !got.Closed || got.Round != 8 {
		t.Errorf("it stands in %+v", got)
	}
	a.in.Close()
	if err := <-a.end; err != nil {
		t.Error(err)
	}
}

func TestAgentHearsOfTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(p *peer, id string)
		code float64
		text string
	}{
		"the job has finished":     {func(p *peer, _ string) { p.done(0, "finished") }, 0, `job "lm" is over: finished`},
		"the job is stopped":       {func(p *peer, _ string) { p.done(wire.DoneStopped, "by an operator") }, 0, `job "lm" is over: by an operator`},
		"the job has failed":       {func(p *peer, _ string) { p.done(5, "do not requeue") }, 5, `job "lm" is over: do not requeue`},
		"the rendezvous is closed": {func(p *peer, id string) { p.round(wire.Round{ID: id, Closed: true, Text: "torchrun on b has ended"}) }, 1, "torchrun on b has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			a := newAgent(t, d, 2)
			p := d.welcome()
			a.hears()
			a.says(`{"join": "127.0.0.1:1"}`)
			c.end(p, p.agent().ID)
			a.heard(map[string]any{"done": c.code, "text": c.text})
			a.in.Close()
			if err := <-a.end; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAgentIsRefused(t *testing.T) {
	d := newDaemon(t)
	a := newAgent(t, d, 2)
	p, _ := d.accept()
	p.send(wire.MRefused, wire.Refused{Code: wire.CodeRefused, Text: "it runs with 2 ranks"}.Append(nil))
	if err := <-a.end; err == nil || !strings.Contains(err.Error(), "it runs with 2 ranks") {
		t.Errorf("%v", err)
	}
	d.ln.Close()
	a = newAgent(t, d, 2, func(o *Options) { o.Patience = 50 * time.Millisecond })
	if err := <-a.end; !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), d.path) {
		t.Errorf("%v", err)
	}
	for _, nodes := range []int{0, wire.MaxAgentNodes + 1} {
		if err := <-newAgent(t, d, nodes).end; err == nil || !strings.Contains(err.Error(), "want 1 to 4096") {
			t.Errorf("%d nodes: %v", nodes, err)
		}
	}
}

// TestAgentIsRefusedInARound: processes train on beside a daemon of another release, and are kept again once the right one is back.
func TestAgentIsRefusedInARound(t *testing.T) {
	d := newDaemon(t)
	a := newAgent(t, d, 1)
	p := d.welcome()
	a.hears()
	a.says(`{"join": "127.0.0.1:1"}`)
	p.round(wire.Round{ID: p.agent().ID, Number: 7, Head: "x:1"})
	a.hears()
	in := p.agent()
	p.conn.Close()
	refuse := func(code int32, text string) {
		p, _ := d.accept()
		p.send(wire.MRefused, wire.Refused{Code: code, Text: text}.Append(nil))
	}
	for range 3 {
		refuse(wire.CodeVersion, "another version")
	}
	p = d.welcome()
	if got := p.agent(); got != in {
		t.Errorf("it stands in %+v, want %+v", got, in)
	}
	if n := strings.Count(a.log.String(), "another version; the processes go on"); n != 1 {
		t.Errorf("the refusal is said %d times:\n%s", n, a.log)
	}

	// One whose processes have ended waits for a round that a daemon which refuses it never gives.
	a.says(`{"join": "127.0.0.1:2"}`)
	p.agent()
	p.conn.Close()
	refuse(wire.CodeVersion, "another version")
	a.heard(map[string]any{"done": 1.0, "text": "the daemon refused: another version"})
}

func TestAgentRefusesOtherLines(t *testing.T) {
	for line, want := range map[string]string{
		`{"join": "x"}`:                        "want HOST:PORT",
		`{"leave": 1}`:                         "unknown field",
		`{"join": `:                            "unexpected EOF",
		strings.Repeat("a", 2*maxAgentLine):    "token too long",
		`{"join": "` + "a\\u0007b" + `:1234"}`: "want HOST:PORT",
	} {
		a := newAgent(t, newDaemon(t), 1)
		if _, err := io.WriteString(a.in, line+"\n"); err != nil && !errors.Is(err, io.ErrClosedPipe) { // it reads no longer than it has to
			t.Error(err)
		}
		if err := <-a.end; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", line, err, want)
		}
	}
}

// A torchrun that was killed leaves processes behind, which lead sessions of their own. They go, with what they started; nobody else does.
func TestProcessesOfAKilledTorchrun(t *testing.T) {
	d := newDaemon(t)
	a := newAgent(t, d, 1)
	d.welcome()
	env, _ := a.hears()["env"].(map[string]any)
	ended := func(entry string) (*exec.Cmd, <-chan error) {
		cmd := exec.Command("sh", "-c", "sleep 1000 & echo; wait")
		cmd.Env = append(os.Environ(), entry)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // its child is there
			t.Fatal(err)
		}
		end := make(chan error, 1)
		go func() { end <- cmd.Wait() }()
		return cmd, end
	}
	id, _ := env["REPLICAD_AGENT"].(string)
	_, gone := ended("REPLICAD_AGENT=" + id)
	other, stays := ended("REPLICAD_AGENT=" + id + "0")
	a.in.Close()
	if err := <-a.end; err != nil {
		t.Error(err)
	}
	if err := <-gone; err == nil || !a.logged("processes that it left behind were killed") {
		t.Errorf("it ended with %v", err)
	}
	select {
	case err := <-stays:
		t.Errorf("another one's ended with %v", err)
	default:
	}
	if killMarked("REPLICAD_AGENT="+id+"0") < 2 {
		t.Error("its children are not found")
	}
	if err := <-stays; err == nil {
		t.Errorf("process %d ended by itself", other.Process.Pid)
	}
}

// FuzzAgentLine: a line that is taken says one thing, and an address that a daemon takes is one that it may send on.
func FuzzAgentLine(f *testing.F) {
	for _, s := range []string{`{"join":"10.0.0.1:29400"}`, `{"close":true}`, `{"join":""}`, `{}`, `{"join":1}`, `{"close":true}{}`, `{"joins":"x"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		c, err := parseAgentLine(line)
		if err != nil {
			if c != (agentLine{}) {
				t.Fatalf("%q: %+v beside %v", line, c, err)
			}
			return
		}
		a := wire.Agent{ID: "0123456789abcdef", Nodes: 2, Address: c.Join}
		if a.Check() != nil {
			return
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parseAgentLine(again); err != nil || back != c {
			t.Fatalf("%q comes back as %+v: %v", line, back, err)
		}
		if got, err := wire.ParseAgent(a.Append(nil)); err != nil || !reflect.DeepEqual(got, a) {
			t.Fatalf("%+v is sent as %+v: %v", a, got, err)
		}
	})
}
