package preload

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// transcript feeds events to a room and writes down what it does, a line an effect.
type transcript struct {
	t    *testing.T
	room Room
	now  time.Time
	got  []string
}

func newTranscript(t *testing.T) *transcript {
	return &transcript{t: t, room: Room{Argv: []string{"python", "train.py"}, Again: 5 * time.Second, Quiet: DefaultQuiet}, now: time.Unix(1000, 0)}
}

func (s *transcript) learn(e Event) { s.did(s.room.Learn(s.now, e)) }

// pass lets time pass, and the room do what is due.
func (s *transcript) pass(d time.Duration) {
	s.now = s.now.Add(d)
	s.did(s.room.Step(s.now))
}

func (s *transcript) did(effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case Start:
			s.got = append(s.got, fmt.Sprintf("start without %v", e.LeaveOut))
		case Kill:
			s.got = append(s.got, "kill")
		case Say:
			s.got = append(s.got, e.Text)
		}
	}
}

// want is what the room has done since the last one.
func (s *transcript) want(lines ...string) {
	s.t.Helper()
	if got := strings.Join(s.got, "\n"); got != strings.Join(lines, "\n") {
		s.t.Errorf("it did\n%s\nwant\n%s", got, strings.Join(lines, "\n"))
	}
	s.got = nil
}

func (s *transcript) ready() bool {
	_, ok := s.room.Ready()
	return ok
}

func report() Report {
	return Report{PID: 7, Argv: []string{"python", "train.py"}, Folder: "/p", Modules: []string{"torch", "bad"}}
}

func says(m Message) Said { return Said{9, m} }

func (s *transcript) imported(kib int64) {
	n := 2
	s.learn(says(Message{Ready: &n, Packages: []string{"torch", "numpy"}, KiB: kib}))
}

func TestRoom(t *testing.T) {
	s := newTranscript(t)
	s.pass(time.Hour)
	s.want()
	s.learn(Reported{report(), true})
	s.want("start without []")
	s.learn(Reported{report(), true}) // of another rank
	s.learn(says(Message{Hello: 9}))
	s.learn(says(Message{Importing: "torch"}))
	if s.want(); s.ready() {
		t.Error("ready while it imports")
	}
	s.imported(310 << 10)
	s.want("restarts fork from process 9, which has imported 2 modules of torch, numpy; 310 MiB, shared")
	if patience, ok := s.room.Ready(); !ok || patience != 5100*time.Millisecond {
		t.Errorf("ready %v, patience %v: want one that follows the size", ok, patience)
	}
	s.pass(time.Hour)
	s.want()

	// What it has imported has changed: the next fresh process says what is imported then.
	s.learn(NotForked{"x.py has changed", true})
	s.want("kill", "this start imports anew, and the next ones fork again: x.py has changed")
	if s.ready() {
		t.Error("ready though it was killed")
	}
	s.learn(Reported{report(), true})
	s.want("start without []")
}

func TestRoomLeavesOut(t *testing.T) {
	s := newTranscript(t)
	s.learn(Reported{report(), true})
	s.learn(says(Message{LeftOut: []Left{{"bad", "starts a thread"}, {"uses", "imports bad"}}}))
	s.want("start without []", "kill", "restarts import bad anew: it starts a thread", "restarts import uses anew: it imports bad", "start without [bad uses]")
	s.learn(says(Message{Importing: "hangs"}))
	s.pass(DefaultQuiet - 1)
	s.learn(says(Message{Importing: "hangs"})) // it goes on
	s.pass(DefaultQuiet - 1)
	s.want()
	s.pass(1)
	s.want("kill", "restarts import hangs anew: it has not been imported within 1m0s", "start without [bad uses hangs]")
	s.learn(says(Message{Importing: "exits"}))
	s.learn(Ended{9, "exit status 3"})
	s.want("restarts import exits anew: it ends the program when it is imported (exit status 3)", "start without [bad uses hangs exits]")
	for i := range maxPasses - 3 {
		s.learn(says(Message{LeftOut: []Left{{fmt.Sprint("m", i), "x"}}}))
	}
	s.got = nil
	s.learn(says(Message{LeftOut: []Left{{"last", "x"}}}))
	s.want("kill", "restarts import last anew: it x", "restarts import everything anew: after 9 tries there are still modules that may not be imported beforehand")
	s.learn(Reported{report(), true})
	s.pass(time.Hour)
	s.want()

	// Nothing new to leave out would be tried for ever.
	s = newTranscript(t)
	s.learn(Reported{report(), true})
	s.learn(says(Message{LeftOut: []Left{}}))
	s.want("start without []", "kill", "restarts import everything anew: after 1 tries there are still modules that may not be imported beforehand")
}

func TestRoomInVain(t *testing.T) {
	s := newTranscript(t)
	s.learn(Reported{report(), true})
	s.imported(0)
	s.got = nil
	s.learn(NotForked{Why: "process 9 cannot fork: no memory"})
	s.want("kill", "this start imports anew: process 9 cannot fork: no memory; another one is started in 5s")
	s.pass(5*time.Second - 1)
	s.want()
	s.pass(1)
	s.imported(0)
	s.learn(Forked{}) // what failed before is forgotten
	s.got = nil
	for range maxVain - 1 {
		s.learn(Ended{9, "signal: killed"})
		s.want("the process that restarts fork from has ended (signal: killed); another one is started in 5s")
		s.pass(5 * time.Second)
		s.imported(0)
		s.got = nil
	}
	s.learn(Ended{9, "signal: killed"})
	s.want("the process that restarts fork from has ended (signal: killed); that was 5 times in a row, so restarts import anew from now on")
	s.pass(time.Hour)
	s.learn(Reported{report(), true})
	s.want()
}

// The kernel kills a process when memory is short: that is no fault of what was being imported.
func TestRoomKilledWhileItImports(t *testing.T) {
	s := newTranscript(t)
	s.learn(Reported{report(), true})
	s.got = nil
	s.learn(Said{9, Message{Importing: "torch"}})
	s.learn(Ended{9, "signal: killed"})
	s.want("the process that restarts would fork from ended before it had imported everything (signal: killed); another one is started in 5s")
	s.pass(5 * time.Second)
	if len(s.room.leaveOut) != 0 {
		t.Errorf("%q is left out", s.room.leaveOut)
	}
}

func TestRoomOfAProcessThatDoesNotStart(t *testing.T) {
	for _, e := range []Event{NotStarted{"no memory"}, Ended{9, "exit status 70"}} {
		s := newTranscript(t)
		s.learn(Reported{report(), true})
		s.got = nil
		s.learn(e)
		if len(s.got) != 1 || !strings.Contains(s.got[0], "another one is started in 5s") {
			t.Errorf("%T: it did %q", e, s.got)
		}
		s.pass(5 * time.Second)
		s.got = nil
		s.pass(DefaultQuiet) // without a word from the beginning
		if len(s.got) != 2 || !strings.HasPrefix(s.got[1], "the process that restarts would fork from has said nothing for") {
			t.Errorf("%T: then it did %q", e, s.got)
		}
	}
}

func TestRoomRefuses(t *testing.T) {
	for why, change := range map[string]func(*Reported){
		"a shell script or another launcher stands between":                             func(r *Reported) { r.Child = false },
		`the command was executed with other arguments, as ["/bin/python"] with 1 more`: func(r *Reported) { r.Report.Argv = []string{"/bin/python", "train.py"} },
		"Python runs with -I, -E or -S":                                                 func(r *Reported) { r.Report.Isolated = true },
		"the program has imported no package":                                           func(r *Reported) { r.Report.Modules = nil },
	} {
		s := newTranscript(t)
		e := Reported{report(), true}
		change(&e)
		s.learn(e)
		s.learn(e) // another rank's
		if len(s.got) != 1 || !strings.HasPrefix(s.got[0], "restarts import anew, since "+why) {
			t.Errorf("it did %q, want once: %s", s.got, why)
		}
	}
	s := newTranscript(t)
	s.learn(Reported{report(), true})
	s.learn(says(Message{Refused: "the program sets OMP_NUM_THREADS itself"}))
	s.want("start without []", "kill", "restarts import anew: the program sets OMP_NUM_THREADS itself")
	s.pass(time.Hour)
	s.want()
}

// A process that was handed over cannot be made again before a program has told how.
func TestRoomOfAProcessHandedOver(t *testing.T) {
	s := newTranscript(t)
	n := 2
	s.did(s.room.Adopt(s.now, says(Message{Ready: &n})))
	if s.want("restarts fork from process 9, which has imported 2 modules; 0 MiB, shared"); !s.ready() {
		t.Fatal("not ready")
	}
	s.learn(NotForked{Why: "it is stopped"})
	s.want("kill", "this start imports anew: it is stopped")
	s.pass(time.Hour)
	s.learn(Reported{report(), true})
	s.want("start without []")
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"pid":7,"argv":["python"],"folder":"/p","modules":["torch"],"own":["a"],"changed":{"A":"x"}}`))
	f.Add([]byte(`{"pid":7,"folder":"/p:q"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseReport(b)
		if err == nil && (r.PID <= 0 || strings.ContainsAny(r.Folder, ":\x00") || !strings.HasPrefix(r.Folder, "/") || len(r.Modules) > maxModules) {
			t.Errorf("%q is taken as %+v", b, r)
		}
	})
}

func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{`{"hello":9,"argv":["python"]}`, `{"importing":"torch\n"}`, `{"left_out":[{"name":"a","why":"b"}]}`, `{"refused":"x"}`, `{"ready":0,"packages":["a"],"kib":1}`, `{"forked":1,"pid":2}`, `{"failed":1,"why":"x","changed":true}`, `{}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMessage(b)
		if err != nil {
			return
		}
		if m.Hello < 0 || m.PID < 0 || m.KiB < 0 || m.Ready != nil && *m.Ready < 0 {
			t.Errorf("%q is taken as %+v", b, m)
		}
		for _, text := range []string{m.Importing, m.Refused, m.Why} {
			if strings.ContainsAny(text, "\n\x1b") || len(text) > maxWhy {
				t.Errorf("%q comes into a line of the log from %q", text, b)
			}
		}
		room := Room{state: importing, report: Report{PID: 1}}
		room.Learn(time.Unix(0, 0), Said{1, m})
	})
}

func TestReports(t *testing.T) {
	for _, bad := range []string{`{}`, `{"pid":-1,"folder":"/p"}`, `{"pid":1,"folder":"p"}`, `{"pid":1,"folder":"/p:q"}`, `[1]`, strings.Repeat(" ", maxReport+1), `{"pid":1,"folder":"/p","modules":[` + strings.Repeat(`"",`, maxModules) + `""]}`} {
		if r, err := ParseReport([]byte(bad)); err == nil {
			t.Errorf("%.80s is taken as %+v", bad, r)
		}
	}
	for _, bad := range []string{`{}`, `{"hello":1,"ready":2}`, `{"ready":-1}`, `{"forked":1,"pid":-2}`, `7`, strings.Repeat(" ", maxMessage+1)} {
		if m, err := ParseMessage([]byte(bad)); err == nil {
			t.Errorf("%.80s is taken as %+v", bad, m)
		}
	}
	if got := latins([]string{"a\xff", "ö"}); got[0] != "aÿ" || got[1] != "Ã¶" {
		t.Errorf("%q", got)
	}
}

func TestPythonPath(t *testing.T) {
	for env, want := range map[string]string{"": "/p", "PYTHONPATH=": "/p", "PYTHONPATH=/a:/b": "/p:/a:/b", "A=1 PYTHONPATH=/x PYTHONPATH=/y": "/p:/y"} {
		if got := pythonPath(strings.Fields(env), "/p"); got != want {
			t.Errorf("%q: %q, want %q", env, got, want)
		}
	}
}

func TestParent(t *testing.T) {
	if got := parent(os.Getpid()); got != os.Getppid() {
		t.Errorf("%d, want %d", got, os.Getppid())
	}
	if got := parent(1 << 30); got != 0 {
		t.Errorf("of no process: %d", got)
	}
}
