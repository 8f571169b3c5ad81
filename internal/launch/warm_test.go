package launch

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A process that waits is made the rank that the daemon asks for, and ends with the launcher if it never is one.
func TestWarm(t *testing.T) {
	d, dir := newDaemon(t), t.TempDir()
	// It says that it waits, then does what it is told; a process that was not started beforehand says so.
	script := `if [ -z "$REPLICAD_WAIT_FD" ]; then exit 9; fi; : > ` + dir + `/waits-$$; read -r place <&3; [ -z "$place" ] && exit 8; echo "$place" > ` + dir + `/place-$$; exit 7`
	j := run(d, 2, script, func(o *Options) { o.Warm = 2 })
	p := d.welcome()
	p.start(1, 2)
	r := p.running()
	x := p.exited()
	if x.Rank != 1 || x.Status != 7 || x.PID != r.PID {
		t.Fatalf("exit %+v of %+v: want status 7 of a process that waited", x, r)
	}
	files, err := filepath.Glob(filepath.Join(dir, "place-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%d processes were given a place, %v", len(files), err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var place map[string]string
	if err := json.Unmarshal(b, &place); err != nil || place["REPLICAD_RANK"] != "1" || place["REPLICAD_WORLD"] != "2" || place["REPLICAD_SOCKET"] != d.path || place["RANK"] != "1" || place["WORLD_SIZE"] != "2" || place["LOCAL_RANK"] != "1" || place["TORCHELASTIC_RUN_ID"] != "replicad:test" {
		t.Errorf("the place is %s, %v", b, err)
	}
	p.start(0, 2) // the other one that waits
	p.running()
	if x := p.exited(); x.Rank != 0 || x.Status != 7 {
		t.Errorf("exit %+v, want status 7 of rank 0", x)
	}
	p.done(0, "finished")
	if code, err := j.wait(); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}

// Processes that wait go with the launcher; one that ends by itself is said, and is nobody's rank.
func TestWarmEnds(t *testing.T) {
	d := newDaemon(t)
	j := run(d, 1, "exit 4", func(o *Options) { o.Warm = 1 })
	p := d.welcome()
	p.done(0, "finished")
	if code, err := j.wait(); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
	if !strings.Contains(j.log.String(), "waits for a rank") {
		t.Errorf("the log says nothing of it:\n%s", j.log)
	}
	if err := (Options{Socket: "s", Job: "j", World: 1, Warm: 65, Command: []string{"sh"}}).Validate(); err == nil || !strings.Contains(err.Error(), "--warm 65") {
		t.Errorf("65 processes that wait: %v", err)
	}
}

// A rank that was lost before it attached is started as without --warm: that it waited may be why.
func TestWarmNotTwice(t *testing.T) {
	d := newDaemon(t)
	j := run(d, 1, `[ -n "$REPLICAD_WAIT_FD" ] || exit 0; read -r place <&3; exit 3`, func(o *Options) { o.Warm = 2 })
	p := d.welcome()
	p.start(0, 1)
	p.running()
	if x := p.exited(); x.Status != 3 {
		t.Fatalf("exit %+v, want status 3 of a process that waited", x)
	}
	p.startAgain(0, 1, 1)
	p.running()
	if x := p.exited(); x.Status != 0 {
		t.Errorf("exit %+v, want that of a process that did not wait", x)
	}
	p.done(0, "finished")
	if code, err := j.wait(); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}

// One that a script between keeps from waiting takes no rank. The rank starts as without it, and another process is started to wait: else none would for as long as
// the job trains, and nobody would hear why.
func TestWarmThatTakesNoRank(t *testing.T) {
	d, dir := newDaemon(t), t.TempDir()
	closed := filepath.Join(dir, "closed")
	if err := syscall.Mkfifo(closed, 0o600); err != nil {
		t.Fatal(err)
	}
	script := `[ -n "$REPLICAD_WAIT_FD" ] || exit 0; mkdir ` + dir + `/first 2>/dev/null || exit 5; exec 3<&-; : > ` + closed + `; exec sleep 1000`
	j := run(d, 1, script, func(o *Options) { o.Warm, o.warmAgain = 1, time.Millisecond })
	p := d.welcome()
	if _, err := os.ReadFile(closed); err != nil { // it has closed its descriptor
		t.Fatal(err)
	}
	p.start(0, 1)
	p.running()
	if x := p.exited(); x.Status != 0 {
		t.Errorf("exit %+v, want that of a process that did not wait", x)
	}
	j.log.await(t, "does not take it")
	j.log.await(t, "which waited for a rank, ended with status 5")
	p.done(0, "finished")
	if code, err := j.wait(); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
}

// Processes that end again and again instead of waiting are not started for ever, and it is said once why.
func TestWarmInVain(t *testing.T) {
	d := newDaemon(t)
	j := run(d, 1, `[ -n "$REPLICAD_WAIT_FD" ] && exit 4; exit 0`, func(o *Options) { o.Warm, o.warmAgain = 1, time.Millisecond })
	p := d.welcome()
	const said = "--warm starts no more of them"
	j.log.await(t, said)
	p.start(0, 1)
	p.running()
	if x := p.exited(); x.Status != 0 {
		t.Errorf("exit %+v, want that of a process that did not wait", x)
	}
	p.done(0, "finished")
	if code, err := j.wait(); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
	log := j.log.String()
	if n := strings.Count(log, said); n != 1 {
		t.Errorf("said %d times:\n%s", n, log)
	}
	if n := strings.Count(log, "waits for a rank"); n != warmVain {
		t.Errorf("%d processes were started:\n%s", n, log)
	}
}
