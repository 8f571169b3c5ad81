package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/leakcheck"
)

// The test binary doubles as the processes that the tests start.
func TestMain(m *testing.M) {
	switch os.Getenv("DEMO_TEST_ROLE") {
	case "":
		leakcheck.Main(m)
	case "sleep":
		fmt.Println("sleeping")
		select {}
	case "parent": // leaves a grandchild in a group of its own
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "DEMO_TEST_ROLE=sleep")
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			panic(err)
		}
		fmt.Printf("child %d\n", c.Process.Pid)
		select {}
	case "fail":
		fmt.Println("no such thing")
		os.Exit(3)
	case "driver": // starts a process as the demo does, and waits to be killed
		s := newSpawner()
		p, err := s.start("x", filepath.Join(os.Getenv("DEMO_TEST_DIR"), "x.log"), []string{"DEMO_TEST_ROLE=sleep"}, nil, nil, os.Args[0])
		if err != nil {
			panic(err)
		}
		fmt.Printf("child %d\n", p.pid())
		select {}
	}
}

// lines collects what a process says.
type lines struct{ c chan string }

func newLines() *lines           { return &lines{make(chan string, 100)} }
func (l *lines) add(line []byte) { l.c <- string(line) }
func (l *lines) next(t *testing.T) string {
	t.Helper()
	select {
	case s := <-l.c:
		return s
	case <-time.After(20 * time.Second):
		t.Fatal("a process said nothing")
		return ""
	}
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestCloseEndsProcessesAndWhatTheyLeaveBehind(t *testing.T) {
	release, err := adoptOrphans()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	s := newSpawner()
	out := newLines()
	p, err := s.start("parent", filepath.Join(t.TempDir(), "log"), []string{"DEMO_TEST_ROLE=parent"}, out.add, nil, os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	var orphan int
	for orphan == 0 {
		_, _ = fmt.Sscanf(out.next(t), "child %d", &orphan)
	}
	if got := children(p.pid()); !slices.Contains(got, orphan) {
		t.Errorf("children of the parent are %v, want %d among them", got, orphan)
	}
	p.kill()
	if !exists(orphan) {
		t.Fatal("the grandchild died with its parent: this test shows nothing")
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if exists(orphan) || exists(p.pid()) {
		t.Fatalf("processes are left: parent %v, grandchild %v", exists(p.pid()), exists(orphan))
	}
}

func TestChildrenDieWithAKilledDemo(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "DEMO_TEST_ROLE=driver", "DEMO_TEST_DIR="+t.TempDir())
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscanf(out, "child %d\n", &child); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(child, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_ = c.Process.Kill()
	_ = c.Wait()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20000); n != 1 {
		_ = syscall.Kill(child, syscall.SIGKILL)
		t.Fatalf("the child outlives a demo that was killed (%v)", err)
	}
}

func TestEachLineCutsLongLines(t *testing.T) {
	var got []int
	in := strings.Repeat("a", 3*maxLine) + "\nshort\n\nlast"
	eachLine(strings.NewReader(in), func(l []byte) { got = append(got, len(l)) })
	if !slices.Equal(got, []int{maxLine, 5, 4}) {
		t.Fatalf("lines of %v bytes, want %v", got, []int{maxLine, 5, 4})
	}
}

func TestMutePortsAreSilent(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(free.Addr().String())
	_ = free.Close()
	refused := func() error {
		c, err := net.Dial("udp", at.String())
		if err != nil {
			return err
		}
		defer c.Close()
		for range 2 { // the first datagram's refusal comes with the second call
			if _, err = c.Write([]byte("x")); err == nil {
				_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
				_, err = c.Read(make([]byte, 1))
			}
		}
		return err
	}
	if err := refused(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("a free port answers %v: the loopback interface does not refuse, so this test shows nothing", err)
	}
	m, err := holdMute([]netip.AddrPort{at}, []netip.AddrPort{at}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer m.release()
	if err := refused(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a mute UDP port answers %v, want silence", err)
	}
	if c, err := net.DialTimeout("tcp", at.String(), 300*time.Millisecond); err == nil {
		_ = c.Close()
		t.Error("a mute TCP port accepts connections")
	} else if n, ok := errors.AsType[net.Error](err); !ok || !n.Timeout() {
		t.Errorf("a mute TCP port answers %v, want silence", err)
	}
	m.release()
	again, err := holdMute([]netip.AddrPort{at}, []netip.AddrPort{at}, time.Second)
	if err != nil {
		t.Fatalf("a released port can't be taken again: %v", err)
	}
	again.release()
}

func TestAddressesOfTwoDemosDiffer(t *testing.T) {
	a, claimA, err := claimOctet()
	if err != nil {
		t.Fatal(err)
	}
	defer claimA.Close()
	b, claimB, err := claimOctet()
	if err != nil {
		t.Fatal(err)
	}
	defer claimB.Close()
	if a == b {
		t.Fatalf("two demos got 127.0.%d", a)
	}
}

func TestAwaitSaysWhatItSawInstead(t *testing.T) {
	j := newJournal()
	j.addRank("n2", []byte(`{"t":1,"rank":1,"pid":77,"event":"start"}`))
	j.addRank("n2", []byte(`{"t":2,"rank":1,"pid":77,"event":"step","epoch":3,"step":8,"loss":2.5}`))
	j.addLog("n1", []byte(`{"level":"info","time":"2026-01-02T03:04:05.678Z","event":"leader","node":"n1","term":2,"message":"leads"}`))
	j.addLog("n1", []byte(`not a log line`))
	err := j.await(t.Context(), time.Millisecond, "step 9", func() bool { _, s := j.latestLocked(); return s >= 9 })
	if err == nil {
		t.Fatal("step 9 never came")
	}
	for _, want := range []string{"step 9", "rank 1 on n2 (pid 77) at epoch 3 step 8", "leader"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("ctrl-c")
	cancel(why)
	if err := j.await(ctx, time.Hour, "x", func() bool { return false }); !errors.Is(err, why) {
		t.Errorf("a cancelled await returns %v", err)
	}
}

// A spare may start processes for ranks that others get: they are refused, and are not where the rank runs.
func TestJournalKnowsTheProcessThatHasTheRank(t *testing.T) {
	j := newJournal()
	want := func(node string, pid int) {
		t.Helper()
		if r := j.ranks[1]; r == nil || r.node != node || r.pid != pid {
			t.Errorf("rank 1 is %+v, want process %d on %s", r, pid, node)
		}
	}
	claimed := func(node string, pid int) {
		j.addLog(node, fmt.Appendf(nil, `{"time":"2026-01-02T03:04:05.678Z","event":"claimed","rank":1,"pid":%d,"node":%q}`, pid, node))
	}
	j.addRank("n4", []byte(`{"t":1,"rank":1,"pid":90,"event":"start"}`))
	claimed("n2", 77)
	want("n2", 77)
	j.addRank("n2", []byte(`{"t":2,"rank":1,"pid":77,"event":"joined"}`))
	j.addRank("n2", []byte(`{"t":2,"rank":1,"pid":77,"event":"step","epoch":3,"step":8,"loss":2.5}`))
	j.addRank("n4", []byte(`{"t":3,"rank":1,"pid":91,"event":"start"}`))
	want("n2", 77)
	claimed("n2", 77) // a daemon's log may be read late
	if r := j.ranks[1]; r.step != 8 || r.joins != 1 {
		t.Errorf("rank 1 is at step %d after %d joins, want 8 and 1", r.step, r.joins)
	}
	claimed("n3", 99)
	want("n3", 99)
	if r := j.ranks[1]; r.step != 0 || r.joins != 1 {
		t.Errorf("a new process of rank 1 is at step %d after %d joins, want 0 and 1", r.step, r.joins)
	}
}

func TestJournalCountsRepeatedAndDifferingSteps(t *testing.T) {
	j := newJournal()
	step := func(epoch, step int, loss float64) {
		j.addRank("n1", fmt.Appendf(nil, `{"t":5,"rank":0,"pid":7,"event":"step","epoch":%d,"step":%d,"loss":%v}`, epoch, step, loss))
	}
	step(1, 1, 3)
	step(1, 2, 2)
	step(2, 2, 2) // trained again after a recovery
	if j.repeats != 1 || j.differs != 0 {
		t.Fatalf("repeats %d, differing %d; want 1, 0", j.repeats, j.differs)
	}
	step(2, 3, 1)
	j.addRank("n1", []byte(`{"t":5,"rank":1,"pid":8,"event":"step","epoch":2,"step":3,"loss":1.5}`))
	if j.differs != 0 {
		t.Fatalf("another rank's loss is its own: %d differ", j.differs)
	}
	step(3, 3, 1.25)
	if j.differs != 1 {
		t.Fatalf("another loss of a step that was trained again is not counted")
	}
}

// A loss that differs is no bit-equality, whatever the weights are at the end; events that were not kept are told.
func TestVerdictTellsWhatTheJournalCounted(t *testing.T) {
	d := &driver{journal: newJournal()}
	same := make([][3]string, 4)
	d.opt.Groups = []int{0, 1, 0, 1}
	if r := d.result(nil, newJournal(), same, same, time.Now(), 0); r.Verdict != bitEqual || strings.Contains(r.verdict(), "events") {
		t.Fatalf("of equal runs: %s", r.verdict())
	}
	d.journal.differs, d.journal.dropped = 2, 7
	r := d.result(nil, newJournal(), same, same, time.Now(), 0)
	if r.Verdict != different || !strings.Contains(r.verdict(), "2 losses") || !strings.Contains(r.verdict(), "7 events") {
		t.Errorf("of two losses that differ and 7 events dropped: %s", r.verdict())
	}
	for _, name := range []string{"losses reported otherwise by a repetition", "events of the logs that were not kept"} {
		if !slices.ContainsFunc(r.Figures, func(f Figure) bool { return f.Name == name && f.Value > 0 }) {
			t.Errorf("no figure %q in %v", name, r.Figures)
		}
	}
}

// What can't work is refused before anything is started, as a wrong use of the flags.
func TestRunRefusesWhatCantWork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		opt  Options
		want []string
	}{
		"long dir":         {Options{Dir: filepath.Join(t.TempDir(), strings.Repeat("d", 100))}, []string{"keeper.sock", "107", "--dir"}},
		"report in a file": {Options{ReportDir: filepath.Join(file, "x")}, []string{"--report", file}},
		"report is a file": {Options{ReportDir: file}, []string{"--report", file}},
		"negative pace":    {Options{Pace: -5 * time.Second}, []string{"--pace -5s"}},
		"pace of an hour":  {Options{Pace: time.Hour}, []string{"--pace 1h0m0s"}},
		"warm -1":          {Options{Warm: -1}, []string{"--warm -1"}},
		"dir that exists":  {Options{Dir: t.TempDir()}, []string{"must not exist"}},
		"dir in a file":    {Options{Dir: filepath.Join(file, "x")}, []string{file}},
	} {
		tc.opt.Trainer = os.Args[0]
		var out bytes.Buffer
		err := Run(t.Context(), tc.opt, &out, &out)
		if !errors.As(err, new(*UsageError)) || out.Len() > 0 {
			t.Errorf("%s: %v, after output %q", name, err, out.String())
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: nothing of %q in: %v", name, want, err)
			}
		}
	}
}

func TestRoom(t *testing.T) {
	dir := t.TempDir()
	if err := checkRoom(dir, 1); err != nil {
		t.Error(err)
	}
	if err := checkRoom(dir, 1<<62); err == nil || !strings.Contains(err.Error(), "no space") || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "TMPDIR or --dir") {
		t.Errorf("without room: %v", err)
	}
}

// A process that ends by itself ends what waits for it, with its last words; one that the demo ends does not.
func TestAwaitEndsWithAProcessThatEnds(t *testing.T) {
	s, j := newSpawner(), newJournal()
	defer s.close()
	start := func(role string, lasting bool) *process {
		p, err := s.start(role, filepath.Join(t.TempDir(), "log"), []string{"DEMO_TEST_ROLE=" + role}, nil, nil, os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		s.guard(p, j, lasting)
		return p
	}
	start("sleep", true).kill()
	if err := j.await(t.Context(), time.Millisecond, "x", func() bool { return true }); err != nil {
		t.Fatalf("after a process that was killed: %v", err)
	}
	start("fail", false)
	err := j.await(t.Context(), time.Hour, "x", func() bool { return false })
	if err == nil || !strings.Contains(err.Error(), "ended by itself: exit status 3; its last lines:") || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("after a process that failed: %v", err)
	}
}

func TestOptionsReportAllFaults(t *testing.T) {
	_, err := Options{Faults: []string{"node", "meteor"}, NoFaults: true, Steps: 3, StateMB: -1, Trainer: "/nonexistent", LogLevel: "warn"}.withDefaults()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"--no-faults", "meteor", "--steps 3", "--state-mb -1", "/nonexistent", `--log-level "warn"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

func TestConfigurationsAreValidAndLogAtInfo(t *testing.T) {
	for asked, want := range map[string]string{"": "info", "debug": "debug"} {
		o, err := Options{Trainer: os.Args[0], LogLevel: asked}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		c, err := newCluster(o, t.TempDir(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.release()
		for _, n := range c.nodes {
			if got, err := config.Load(n.config); err != nil || got.Log.Level != want {
				t.Errorf("node %s, asked for %q: %v, want log level %s", n.name, asked, err, want)
			}
		}
	}
}

func TestRunRefusesADirectoryThatExists(t *testing.T) {
	dir := t.TempDir()
	err := Run(t.Context(), Options{Dir: dir, Trainer: os.Args[0]}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a directory that exists gives %v", err)
	}
}

func TestCompareNamesEveryDifference(t *testing.T) {
	a := make([][3]string, 4)
	for r := range a {
		a[r] = [3]string{fmt.Sprint("w", r%2), fmt.Sprint("s", r%2), fmt.Sprint("p", r)}
	}
	if d := compare(a, a, []int{0, 1, 0, 1}); len(d) != 0 {
		t.Fatalf("equal states differ: %v", d)
	}
	b := slices.Clone(a)
	b[2][0] = "other"
	d := compare(b, a, []int{0, 1, 0, 1})
	if len(d) != 2 || !strings.Contains(d[0], "weights of rank 2") || !strings.Contains(d[1], "its replica 0") {
		t.Fatalf("differences of rank 2's weights: %q", d)
	}
}

func TestHealthNamesWhatIsMissing(t *testing.T) {
	const good = `{"node":"n1","leader":"n1","term":3,"nodes":[{"name":"n1","state":"alive"},{"name":"n2","state":"alive"}],
		"jobs":[{"name":"demo","phase":"open","copies":2,"ranks":[{"rank":0,"state":"alive"},{"rank":1,"state":"alive"}]}]}`
	parse := func(text string) map[string]*status {
		all := map[string]*status{}
		for _, n := range []string{"n1", "n2"} {
			all[n] = new(status)
			if err := json.Unmarshal([]byte(text), all[n]); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	nodes := []string{"n1", "n2"}
	if why := healthy(parse(good), nodes, 2); why != "" {
		t.Fatalf("a whole cluster is refused: %s", why)
	}
	for change, want := range map[[2]string]string{
		{`"copies":2`, `"copies":2,"degraded":true`}:                      "degraded",
		{`"phase":"open"`, `"phase":"planned"`}:                           "planned",
		{`{"name":"n2","state":"alive"}`, `{"name":"n2","state":"dead"}`}: "n2 alive",
		{`{"rank":1,"state":"alive"}`, `{"rank":1,"state":"unobserved"}`}: "rank 1",
		{`"leader":"n1"`, `"leader":""`}:                                  "no leader",
		{`"term":3`, `"term":3,"adopting":true`}:                          "adopting",
	} {
		if why := healthy(parse(strings.Replace(good, change[0], change[1], 1)), nodes, 2); !strings.Contains(why, want) {
			t.Errorf("with %s: %q, want it to name %q", change[1], why, want)
		}
	}
	all := parse(good)
	all["n2"] = nil
	if why := healthy(all, nodes, 2); !strings.Contains(why, "n2") {
		t.Errorf("a silent daemon: %q", why)
	}
}

func TestTableShowsNothingForWhatDidNotHappen(t *testing.T) {
	out := table([]Fault{{Kind: Daemon, target: "n1", From: fromOwnRAM, Resumed: new(812.4), away: 400 * time.Millisecond, Reason: "training did not notice"}})
	for _, want := range []string{"daemon", "812", "0.4 s", "training did not notice"} {
		if !strings.Contains(out, want) {
			t.Errorf("table without %q:\n%s", want, out)
		}
	}
	if bytes.Contains([]byte(out), []byte("NaN")) || strings.Contains(out, "<nil>") {
		t.Errorf("table shows absent values:\n%s", out)
	}
}
