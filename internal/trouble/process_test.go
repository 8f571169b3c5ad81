//go:build cgo

package trouble_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	harness "github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/pace"
)

// patience is how long an event may take before its test fails, on a quiet machine (pace); nothing is asserted about times below it. With much other work
// a cluster may hear nothing of itself for 20 s.
const patience = 90 * time.Second

// poll asks until the answer is right, with a pause behind each: who asks all the time takes the core from who has the answer. It tells whether it
// became right in time.
func poll(t testing.TB, what string, right func() bool) bool {
	t.Helper()
	limit := pace.New(patience, t.Name()+": "+what)
	defer limit.Stop()
	for !right() {
		if limit.Over() {
			return false
		}
		time.Sleep(20 * time.Millisecond)
	}
	return true
}

// process is a program under test. Its output is kept, line by line, both streams as one.
type process struct {
	*harness.Process
	t    testing.TB
	gone chan struct{} // closed once it has been waited for and its output was read

	mu    sync.Mutex // guards what follows
	lines []line
	more  chan struct{} // closed and renewed with each line
}

// line is a line of output; fields is nil where it is not a JSON object.
type line struct {
	text   string
	fields fields
}

type fields map[string]any

// is tells whether the line is the event, with these further fields.
func (l line) is(event string, want fields) bool {
	if l.fields["event"] != event {
		return false
	}
	for k, v := range want {
		switch v := v.(type) {
		case int:
			if l.fields[k] != float64(v) {
				return false
			}
		case string:
			if s, ok := l.fields[k].(string); !ok || !strings.Contains(s, v) {
				return false
			}
		default:
			if l.fields[k] != v {
				return false
			}
		}
	}
	return true
}

// spawn starts a program; it is killed at the end of the test.
func spawn(t testing.TB, name string, env []string, program string, args ...string) *process {
	t.Helper()
	return follow(t, func(hear func([]byte)) (*harness.Process, error) {
		return spawner.Start(name, os.DevNull, env, harness.Output{Both: hear}, program, args...)
	})
}

// follow keeps what a process says from its start on, and kills it at the end of the test.
func follow(t testing.TB, start func(hear func([]byte)) (*harness.Process, error)) *process {
	t.Helper()
	p := &process{t: t, gone: make(chan struct{}), more: make(chan struct{})}
	var err error
	if p.Process, err = start(p.add); err != nil {
		t.Fatal(err)
	}
	spawner.Ended(p.Process, func() { close(p.gone) })
	t.Cleanup(func() {
		p.kill()
		if took := p.State(); took != nil { // .ci/slowest adds them up
			t.Logf("processor: %.2f s of %s", (took.UserTime() + took.SystemTime()).Seconds(), p.Name)
		}
		if at, bad, _ := p.scan(0, func(l line) bool { return strings.Contains(l.text, "DATA RACE") || strings.HasPrefix(l.text, "panic:") }); bad {
			t.Errorf("%s has a data race or panicked:\n%s", p.Name, p.text(at, at+60))
		}
		if t.Failed() {
			t.Logf("last lines of %s:\n%s", p.Name, p.tail(25))
		}
	})
	return p
}

func (p *process) add(text []byte) {
	l := line{text: string(text)}
	_ = json.Unmarshal(text, &l.fields) // plain lines have no fields
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, l)
	close(p.more)
	p.more = make(chan struct{})
}

// scan looks for a line from index from on. more is closed when there are further ones.
func (p *process) scan(from int, match func(line) bool) (at int, found bool, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := from; i < len(p.lines); i++ {
		if match(p.lines[i]) {
			return i, true, nil
		}
	}
	return len(p.lines), false, p.more
}

func (p *process) saw(match func(line) bool) bool {
	_, found, _ := p.scan(0, match)
	return found
}

// mark is the place in the output after which awaitFrom looks.
func (p *process) mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}

// await waits for an event in the output.
func (p *process) await(event string, want fields) line {
	p.t.Helper()
	return p.awaitFrom(0, event, want)
}

func (p *process) awaitFrom(from int, event string, want fields) line {
	p.t.Helper()
	return p.awaitLine(from, event, func(l line) bool { return l.is(event, want) })
}

// awaitText waits for a line that holds text, and returns its place.
func (p *process) awaitText(from int, text string) int {
	p.t.Helper()
	match := func(l line) bool { return strings.Contains(l.text, text) }
	p.awaitLine(from, text, match)
	at, _, _ := p.scan(from, match)
	return at
}

// awaitAll waits for so many lines of an event: another process may act on what they are about before they are read.
func (p *process) awaitAll(n int, event string, want fields) {
	p.t.Helper()
	for from := 0; n > 0; n-- {
		p.awaitFrom(from, event, want)
		at, _, _ := p.scan(from, func(l line) bool { return l.is(event, want) })
		from = at + 1
	}
}

// awaitLong is await for what takes longer than events do.
func (p *process) awaitLong(d time.Duration, event string, want fields) line {
	p.t.Helper()
	return p.awaitWithin(d, 0, event, func(l line) bool { return l.is(event, want) })
}

func (p *process) awaitLine(from int, what string, match func(line) bool) line {
	p.t.Helper()
	return p.awaitWithin(patience, from, what, match)
}

func (p *process) awaitWithin(d time.Duration, from int, what string, match func(line) bool) line {
	p.t.Helper()
	limit := pace.New(d, fmt.Sprintf("%s: %s to say %q", p.t.Name(), p.Name, what))
	defer limit.Stop()
	for {
		at, found, more := p.scan(from, match)
		if found {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.lines[at]
		}
		from = at
		select {
		case <-more:
		case <-p.gone:
			if _, found, _ := p.scan(from, match); !found {
				p.t.Fatalf("%s ended (%v) without %q", p.Name, p.State(), what)
			}
		case <-limit.C:
			if limit.Over() {
				p.t.Fatalf("%s did not say %q in %v", p.Name, what, limit.Waited())
			}
		}
	}
}

// stacks ends a program that should have ended, and returns what it says of its goroutines: a Go program tells what each of them waits for.
func (p *process) stacks() string {
	from := p.mark()
	p.Signal(syscall.SIGQUIT)
	select {
	case <-p.gone:
	case <-time.After(pace.Of(patience)):
	}
	return p.text(from, p.mark())
}

// exit waits for the end of the program and returns its exit code; -1 if a signal ended it.
func (p *process) exit() int {
	p.t.Helper()
	limit := pace.New(patience, fmt.Sprintf("%s: %s to end", p.t.Name(), p.Name))
	defer limit.Stop()
	for ended := false; !ended; {
		select {
		case <-p.gone:
			ended = true
		case <-limit.C:
			if limit.Over() {
				p.t.Fatalf("%s does not end:\n%s", p.Name, p.stacks())
			}
		}
	}
	return p.State().ExitCode()
}

// kill ends the program and all of its group, and waits until its last words were taken in. What it leaves behind must not hold its
// output: nobody would know when that ends.
func (p *process) kill() {
	p.t.Helper()
	p.Kill()
	select {
	case <-p.gone:
	case <-time.After(pace.Of(patience)):
		p.t.Errorf("%s (pid %d) is dead, and a process that it left behind still has its output open", p.Name, p.PID())
	}
}

func (p *process) output() string { return p.tail(1 << 30) }

func (p *process) tail(n int) string {
	at := p.mark()
	return p.text(max(0, at-n), at)
}

// text is the lines from one index to before another.
func (p *process) text(from, to int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, l := range p.lines[from:min(to, len(p.lines))] {
		b.WriteString(l.text + "\n")
	}
	return b.String()
}

// says fails the test unless the program's output has every one of these.
func (p *process) says(want ...string) {
	p.t.Helper()
	out := p.output()
	for _, w := range want {
		if !strings.Contains(out, w) {
			p.t.Errorf("%s does not say %q:\n%s", p.Name, w, out)
		}
	}
}

// awaitStopped waits until SIGSTOP has taken hold of a process.
func awaitStopped(t testing.TB, pid int) {
	t.Helper()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		t.Fatalf("wait for process %d to stop: %v", pid, err)
	}
}
