package session

import (
	"io"
	"os"
	"os/exec"
	"testing"
)

// idle starts a process that does nothing, and knows its start time.
func idle(t *testing.T) (*exec.Cmd, io.Closer, uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envIdle+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	start, err := StartTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, in, start
}

func TestWatch(t *testing.T) {
	s := serve(t, Config{})
	killed, _, start := idle(t)
	leaving, in, start2 := idle(t)
	for range 3 { // watched once, however often it is asked for
		if err := s.Watch(killed.Process.Pid, start); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Watch(leaving.Process.Pid, start2); err != nil {
		t.Fatal(err)
	}
	if !Alive(killed.Process.Pid, start) || Alive(killed.Process.Pid, start+1) || Alive(0, 0) || Alive(-1, 0) {
		t.Error("who is alive")
	}
	if err := Kill(killed.Process.Pid, start+1); err != nil || !Alive(killed.Process.Pid, start) {
		t.Fatalf("killed a process that started at another time: %v", err)
	}
	if n := len(s.Events()); n != 0 {
		t.Errorf("%d events while both live", n)
	}
	if err := Kill(killed.Process.Pid, start); err != nil {
		t.Fatal(err)
	}
	if ev := next[Exited](t, s); ev.PID != killed.Process.Pid || ev.StartTime != start {
		t.Errorf("%+v", ev)
	}
	if Alive(killed.Process.Pid, start) { // nobody has reaped it yet
		t.Error("a dead process that waits to be reaped is alive")
	}
	if err := Kill(killed.Process.Pid, start); err != nil {
		t.Errorf("killed twice: %v", err)
	}
	_ = in.Close()
	if ev := next[Exited](t, s); ev.PID != leaving.Process.Pid {
		t.Errorf("%+v", ev)
	}
	_ = killed.Wait()
	for _, start := range []uint64{start, start2 + 1} { // gone, or never was
		if err := s.Watch(killed.Process.Pid, start); err != nil {
			t.Fatal(err)
		}
		if ev := next[Exited](t, s); ev.PID != killed.Process.Pid || ev.StartTime != start {
			t.Errorf("%+v", ev)
		}
	}
	if n := len(s.Events()); n != 0 {
		t.Errorf("%d events more", n)
	}
	still, _, start3 := idle(t)
	if err := s.Watch(still.Process.Pid, start3); err != nil { // the server's end must not wait for it
		t.Fatal(err)
	}
}

func TestParseStartTime(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 424242 20 21\n"
	for _, name := range []string{"(sh)", "(a b)", "(a) (b)", "())"} {
		if n, err := parseStartTime([]byte("12 " + name + tail)); err != nil || n != 424242 {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	for _, bad := range []string{"", "12 (sh) S 1", "12 (sh) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x 20"} {
		if _, err := parseStartTime([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// FuzzStartTime: whatever a process calls itself, the field is found; whatever the text, nothing panics.
func FuzzStartTime(f *testing.F) {
	f.Add([]byte("x"))
	f.Add([]byte(") S 1 2 3 (4 5) 6 7 8"))
	f.Fuzz(func(t *testing.T, name []byte) {
		_, _ = parseStartTime(name)
		_, _ = halted(name), parseMapped(name)
		stat := append(append([]byte("12 ("), name...), ") S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 424242 20 21"...)
		if n, err := parseStartTime(stat); err != nil || n != 424242 {
			t.Errorf("%q: %d, %v", stat, n, err)
		}
		if halted(stat) {
			t.Errorf("%q is a stopped process", stat)
		}
	})
}

func TestHaltedAndMapped(t *testing.T) {
	for state, want := range map[string]bool{"T": true, "t": true, "S": false, "R": false, "Z": false} {
		if got := halted([]byte("12 (a) T (b) " + state + " 1 2")); got != want {
			t.Errorf("state %s: %t", state, got)
		}
	}
	for _, bad := range []string{"", "12", "12 (a)", "12 (a) "} {
		if halted([]byte(bad)) {
			t.Errorf("%q is a stopped process", bad)
		}
	}
	for text, want := range map[string]uint64{"100 50 25 1 0 7 0": 25, "": 0, "1 2": 0, "1 2 x": 0, "1 2 99999999999999999999": 0, "1 2 18446744073709551615": 0} {
		if got := parseMapped([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if Mapped(os.Getpid()) == 0 {
		t.Error("this process has nothing of its program in reach")
	}
}
