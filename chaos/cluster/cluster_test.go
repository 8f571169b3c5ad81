package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/leakcheck"
)

// The test binary doubles as the processes that the tests start.
func TestMain(m *testing.M) {
	switch os.Getenv("CLUSTER_TEST_ROLE") {
	case "":
		leakcheck.Main(m)
	case "sleep":
		fmt.Println("sleeping")
		select {}
	case "parent": // leaves a grandchild in a group of its own
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "CLUSTER_TEST_ROLE=sleep")
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			panic(err)
		}
		fmt.Printf("child %d\n", c.Process.Pid)
		select {}
	case "both":
		for i := range bothLines / 2 {
			_, _ = fmt.Fprintln(os.Stdout, 2*i)
			_, _ = fmt.Fprintln(os.Stderr, 2*i+1)
		}
	case "fail":
		fmt.Println("no such thing")
		os.Exit(3)
	case "driver": // starts a process as a tool does, and waits to be killed
		s := NewSpawner()
		p, err := s.Start("x", filepath.Join(os.Getenv("CLUSTER_TEST_DIR"), "x.log"), []string{"CLUSTER_TEST_ROLE=sleep"}, Output{}, os.Args[0])
		if err != nil {
			panic(err)
		}
		fmt.Printf("child %d\n", p.PID())
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
	release, err := AdoptOrphans()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	s := NewSpawner()
	out := newLines()
	p, err := s.Start("parent", filepath.Join(t.TempDir(), "log"), []string{"CLUSTER_TEST_ROLE=parent"}, Output{Out: out.add}, os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	var orphan int
	for orphan == 0 {
		_, _ = fmt.Sscanf(out.next(t), "child %d", &orphan)
	}
	if got := Children(p.PID()); !slices.Contains(got, orphan) {
		t.Errorf("children of the parent are %v, want %d among them", got, orphan)
	}
	p.Kill()
	if !exists(orphan) {
		t.Fatal("the grandchild died with its parent: this test shows nothing")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if exists(orphan) || exists(p.PID()) {
		t.Fatalf("processes are left: parent %v, grandchild %v", exists(p.PID()), exists(orphan))
	}
}

func TestChildrenDieWithTheirStarter(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "CLUSTER_TEST_ROLE=driver", "CLUSTER_TEST_DIR="+t.TempDir())
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
		t.Fatalf("the child outlives its starter (%v)", err)
	}
}

// bothLines is how many lines, in turn on one stream and on the other, the test process "both" writes.
const bothLines = 2000

// What is heard of both streams as one comes in the order in which it was written.
func TestBothStreamsKeepTheirOrder(t *testing.T) {
	s := NewSpawner()
	defer s.Close()
	var got []string
	log := filepath.Join(t.TempDir(), "log")
	p, err := s.Start("both", log, []string{"CLUSTER_TEST_ROLE=both"}, Output{Both: func(line []byte) { got = append(got, string(line)) }}, os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	s.Ended(p, func() { close(done) })
	<-done
	if len(got) != bothLines {
		t.Fatalf("%d lines were heard, want %d", len(got), bothLines)
	}
	for i, line := range got {
		if line != fmt.Sprint(i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if b, err := os.ReadFile(log); err != nil || string(b) != strings.Join(got, "\n")+"\n" {
		t.Errorf("the log differs from what was heard: %d bytes, %v", len(b), err)
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
	// Below the ports that the kernel gives to sockets without one: another program's would take such a one between two of our looks.
	at := netip.AddrPortFrom(netip.MustParseAddr("127.8.0.1"), uint16(10_000+rand.IntN(20_000)))
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
	m, err := HoldMute([]netip.AddrPort{at}, []netip.AddrPort{at}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if err := refused(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a mute UDP port answers %v, want silence", err)
	}
	if c, err := net.DialTimeout("tcp", at.String(), 300*time.Millisecond); err == nil {
		_ = c.Close()
		t.Error("a mute TCP port accepts connections")
	} else if n, ok := errors.AsType[net.Error](err); !ok || !n.Timeout() {
		t.Errorf("a mute TCP port answers %v, want silence", err)
	}
	m.Release()
	again, err := HoldMute([]netip.AddrPort{at}, []netip.AddrPort{at}, time.Second)
	if err != nil {
		t.Fatalf("a released port can't be taken again: %v", err)
	}
	again.Release()
}

// Clusters that are made side by side, as tests do that run in parallel, have addresses, identities and files of their own.
func TestClustersSideBySide(t *testing.T) {
	s := NewSpawner()
	defer s.Close()
	all := make([]*Cluster, 12)
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i := range all {
		dir := t.TempDir()
		wg.Go(func() { all[i], errs[i] = New(Plan{Dir: dir, Nodes: []string{"n1", "n2"}, Voters: 1}, s, nil) })
	}
	wg.Wait()
	taken := map[netip.Addr]int{}
	for i, c := range all {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		defer c.Release()
		for _, n := range c.Nodes {
			if was, ok := taken[n.IP]; ok {
				t.Errorf("clusters %d and %d both have %v", was, i, n.IP)
			}
			taken[n.IP] = i
			read, err := config.Load(n.File)
			if err != nil {
				t.Fatal(err)
			}
			if read.Host() != n.IP.String() || read.IsVoter() != n.Voter || len(read.Voters) != 1 || filepath.Dir(read.PKI.CA) != filepath.Join(c.Dir, "pki") {
				t.Errorf("cluster %d: %s is configured as %+v", i, n.Name, read)
			}
		}
	}
}

func TestAwaitSaysWhatItSawInstead(t *testing.T) {
	j := NewJournal()
	j.AddRank("n2", []byte(`{"t":1,"rank":1,"pid":77,"event":"start"}`))
	j.AddRank("n2", []byte(`{"t":2,"rank":1,"pid":77,"event":"step","epoch":3,"step":8,"loss":2.5}`))
	j.AddLog("n1", []byte(`{"level":"info","time":"2026-01-02T03:04:05.678Z","event":"leader","node":"n1","term":2,"message":"leads"}`))
	j.AddLog("n1", []byte(`not a log line`))
	err := j.Await(t.Context(), time.Millisecond, "step 9", func() bool { _, s := j.LatestLocked(); return s >= 9 })
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
	if err := j.Await(ctx, time.Hour, "x", func() bool { return false }); !errors.Is(err, why) {
		t.Errorf("a cancelled await returns %v", err)
	}
}

// A spare may start processes for ranks that others get: they are refused, and are not where the rank runs.
func TestJournalKnowsTheProcessThatHasTheRank(t *testing.T) {
	j := NewJournal()
	want := func(node string, pid int) {
		t.Helper()
		if r := j.Ranks[1]; r == nil || r.Node != node || r.PID != pid {
			t.Errorf("rank 1 is %+v, want process %d on %s", r, pid, node)
		}
	}
	claimed := func(node string, pid int) {
		j.AddLog(node, fmt.Appendf(nil, `{"time":"2026-01-02T03:04:05.678Z","event":"claimed","rank":1,"pid":%d,"node":%q}`, pid, node))
	}
	j.AddRank("n4", []byte(`{"t":1,"rank":1,"pid":90,"event":"start"}`))
	claimed("n2", 77)
	want("n2", 77)
	j.AddRank("n2", []byte(`{"t":2,"rank":1,"pid":77,"event":"joined"}`))
	j.AddRank("n2", []byte(`{"t":2,"rank":1,"pid":77,"event":"step","epoch":3,"step":8,"loss":2.5}`))
	j.AddRank("n4", []byte(`{"t":3,"rank":1,"pid":91,"event":"start"}`))
	want("n2", 77)
	claimed("n2", 77) // a daemon's log may be read late
	if r := j.Ranks[1]; r.Step != 8 || r.Joins != 1 {
		t.Errorf("rank 1 is at step %d after %d joins, want 8 and 1", r.Step, r.Joins)
	}
	claimed("n3", 99)
	want("n3", 99)
	if r := j.Ranks[1]; r.Step != 0 || r.Joins != 1 {
		t.Errorf("a new process of rank 1 is at step %d after %d joins, want 0 and 1", r.Step, r.Joins)
	}
}

func TestJournalCountsRepeatedAndDifferingSteps(t *testing.T) {
	j := NewJournal()
	step := func(epoch, step int, loss float64) {
		j.AddRank("n1", fmt.Appendf(nil, `{"t":5,"rank":0,"pid":7,"event":"step","epoch":%d,"step":%d,"loss":%v}`, epoch, step, loss))
	}
	step(1, 1, 3)
	step(1, 2, 2)
	step(2, 2, 2) // trained again after a recovery
	if j.Repeats != 1 || j.Differs != 0 {
		t.Fatalf("repeats %d, differing %d; want 1, 0", j.Repeats, j.Differs)
	}
	step(2, 3, 1)
	j.AddRank("n1", []byte(`{"t":5,"rank":1,"pid":8,"event":"step","epoch":2,"step":3,"loss":1.5}`))
	if j.Differs != 0 {
		t.Fatalf("another rank's loss is its own: %d differ", j.Differs)
	}
	step(3, 3, 1.25)
	if j.Differs != 1 {
		t.Fatalf("another loss of a step that was trained again is not counted")
	}
}

// A process that ends by itself ends what waits for it, with its last words; one that is ended on purpose does not.
func TestAwaitEndsWithAProcessThatEnds(t *testing.T) {
	s, j := NewSpawner(), NewJournal()
	defer s.Close()
	start := func(role string, lasting bool) *Process {
		p, err := s.Start(role, filepath.Join(t.TempDir(), "log"), []string{"CLUSTER_TEST_ROLE=" + role}, Output{}, os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		s.Guard(p, j, lasting)
		return p
	}
	start("sleep", true).Kill()
	if err := j.Await(t.Context(), time.Millisecond, "x", func() bool { return true }); err != nil {
		t.Fatalf("after a process that was killed: %v", err)
	}
	start("fail", false)
	err := j.Await(t.Context(), time.Hour, "x", func() bool { return false })
	if err == nil || !strings.Contains(err.Error(), "ended by itself: exit status 3; its last lines:") || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("after a process that failed: %v", err)
	}
}

func TestHealthNamesWhatIsMissing(t *testing.T) {
	const good = `{"node":"n1","leader":"n1","term":3,"nodes":[{"name":"n1","state":"alive"},{"name":"n2","state":"alive"}],
		"jobs":[{"name":"demo","phase":"open","copies":2,"ranks":[{"rank":0,"state":"alive"},{"rank":1,"state":"alive"}]}]}`
	parse := func(text string) map[string]*Status {
		all := map[string]*Status{}
		for _, n := range []string{"n1", "n2"} {
			all[n] = new(Status)
			if err := json.Unmarshal([]byte(text), all[n]); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	nodes := []string{"n1", "n2"}
	if why := Healthy(parse(good), nodes, "demo", 2); why != "" {
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
		if why := Healthy(parse(strings.Replace(good, change[0], change[1], 1)), nodes, "demo", 2); !strings.Contains(why, want) {
			t.Errorf("with %s: %q, want it to name %q", change[1], why, want)
		}
	}
	all := parse(good)
	all["n2"] = nil
	if why := Healthy(all, nodes, "demo", 2); !strings.Contains(why, "n2") {
		t.Errorf("a silent daemon: %q", why)
	}
}

func TestCompareNamesEveryDifference(t *testing.T) {
	a := make([]Digests, 4)
	for r := range a {
		a[r] = Digests{fmt.Sprint("w", r%2), fmt.Sprint("s", r%2), fmt.Sprint("p", r)}
	}
	if d := Compare(a, a, []int{0, 1, 0, 1}); len(d) != 0 {
		t.Fatalf("equal states differ: %v", d)
	}
	b := slices.Clone(a)
	b[2][0] = "other"
	d := Compare(b, a, []int{0, 1, 0, 1})
	if len(d) != 2 || !strings.Contains(d[0], "weights of rank 2") || !strings.Contains(d[1], "its replica 0") {
		t.Fatalf("differences of rank 2's weights: %q", d)
	}
}
