//go:build cgo

package trouble_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// stopping is a job of two ranks on two nodes whose durable step lies far behind, at a step that is no multiple.
func stopping(t *testing.T) (c *cluster, launchers []*process) {
	t.Helper()
	c = newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.launch()
	}
	for i, n := range c.nodes {
		n.daemon.await("linked", nil)
		if i < 2 {
			launchers = append(launchers, n.run("job", 2, rankSpec{}, "--ranks", fmt.Sprint(i), "--durable-every", "1000000"))
		}
	}
	launchers[0].await("step", fields{"step": 60})
	return c, launchers
}

// answered asks again while no leader answers: on a busy machine the leadership moves.
func (n *node) answered(words ...string) (code int, out string) {
	n.t.Helper()
	poll(n.t, "a leader's answer", func() bool {
		code, out = n.verb(words...)
		return code == 0 || !strings.Contains(out, "no leader answered")
	})
	return code, out
}

// newest is the newest durable step at the path, which is read by nobody's word; 0: there is none.
func newest(t *testing.T, n *node) int {
	t.Helper()
	found := finds(t, n)
	if len(found) == 0 {
		return 0
	}
	return int(found[0].Position.Step)
}

// TestEndedJobIsOnDisk: the newest commit of a job is on disk when `job end` returns, which says so.
func TestEndedJobIsOnDisk(t *testing.T) {
	t.Parallel()
	c, launchers := stopping(t)
	at := c.nodes[0].statusWhen(linked).job("job").Position.Step
	code, out := c.nodes[0].answered("job", "end", "job")
	if code != 0 {
		t.Fatalf("job end: %d\n%s", code, out)
	}
	for _, l := range launchers {
		if code := l.exit(); code != 1 {
			t.Errorf("%s ends with code %d, want 1", l.Name, code)
		}
	}
	j := c.nodes[1].statusWhen(linked).job("job")
	if j.Phase != "ended" || j.Durable != j.Position || j.Durable.Step < at {
		t.Errorf("%s at step %d, on disk step %d; step %d was committed before", j.Phase, j.Position.Step, j.Durable.Step, at)
	}
	if disk := newest(t, c.nodes[0]); disk != j.Position.Step || !strings.Contains(out, fmt.Sprintf("on disk: step %d", disk)) {
		t.Errorf("step %d is on disk, %d was committed, and job end says\n%s", disk, j.Position.Step, out)
	}
	l := c.nodes[0].run("job", 2, rankSpec{}, "--capacity", "2", "--resume")
	l.await("loaded", fields{"step": j.Position.Step, "source": "durable"})
}

// TestJobEndsNow: --now writes nothing.
func TestJobEndsNow(t *testing.T) {
	t.Parallel()
	c, _ := stopping(t)
	if code, out := c.nodes[0].answered("job", "end", "--now", "job"); code != 0 {
		t.Fatalf("job end --now: %d\n%s", code, out)
	}
	if disk := newest(t, c.nodes[0]); disk != 0 {
		t.Errorf("step %d is on disk", disk)
	}
}

// TestStoppedJobGoesOn: the newest commit of a stopped job is on disk and in memory, and the same command goes on with it from memory.
func TestStoppedJobGoesOn(t *testing.T) {
	t.Parallel()
	c, launchers := stopping(t)
	at := c.nodes[0].statusWhen(linked).job("job").Position.Step
	code, out := c.nodes[1].answered("job", "stop", "job")
	if code != 0 {
		t.Fatalf("job stop: %d\n%s", code, out)
	}
	for _, l := range launchers {
		if code := l.exit(); code != 0 {
			t.Errorf("%s ends with code %d: a stop that was asked for is no failure\n%s", l.Name, code, l.output())
		}
		contains(t, l.output(), `job "job" is stopped: stopped by an operator`)
	}
	j := c.nodes[0].statusWhen(linked).job("job")
	if disk := newest(t, c.nodes[0]); disk < at || disk != j.Position.Step || !strings.Contains(out, fmt.Sprintf("on disk: step %d", disk)) {
		t.Errorf("step %d is on disk, %d was committed, %d when it was stopped; job stop says\n%s", disk, j.Position.Step, at, out)
	}
	contains(t, strings.Join(j.Waiting, "\n"), "the same replicad run goes on with it")
	again := c.nodes[0].run("job", 2, rankSpec{}, "--ranks", "0", "--durable-every", "1000000")
	c.nodes[1].run("job", 2, rankSpec{}, "--ranks", "1", "--durable-every", "1000000")
	o := again.await("loaded", nil)
	from := int(o.fields["step"].(float64))
	if o.fields["source"] == "durable" || from < j.Position.Step {
		t.Errorf("it goes on with %s, want step %d from memory", o.text, j.Position.Step)
	}
	again.await("step", fields{"step": from + 5})
}

// TestLastLauncherHasGone: what is committed is written when nobody works at the job any more, wherever its ranks were.
func TestLastLauncherHasGone(t *testing.T) {
	t.Parallel()
	c, launchers := stopping(t)
	const at = 61 // the step that they are in, at the least
	for _, l := range launchers {
		l.Signal(syscall.SIGTERM)
	}
	for _, l := range launchers {
		if code := l.exit(); code != 128+int(syscall.SIGTERM) {
			t.Errorf("%s ends with code %d", l.Name, code)
		}
		contains(t, l.output(), "once they have ended the step that they are in")
	}
	j := c.nodes[0].statusWhen(func(s status) bool { return linked(s) && s.job("job").Durable.Step > 0 }).job("job")
	if disk := newest(t, c.nodes[0]); disk < at || disk != j.Position.Step {
		t.Errorf("step %d is on disk, %d was committed, their ranks were in step %d when they were told to end", disk, j.Position.Step, at)
	}
}

// endsWritten asks all daemons to end, and looks whether a step is on disk then, or a newer one.
func endsWritten(t *testing.T, c *cluster, at int) {
	t.Helper()
	for _, n := range c.nodes {
		n.daemon.Signal(syscall.SIGTERM)
	}
	for _, n := range c.nodes {
		if code := n.daemon.exit(); code != 0 {
			t.Errorf("the daemon of %s ends with code %d", n.Name, code)
		}
	}
	if disk := newest(t, c.nodes[0]); disk < at {
		t.Errorf("step %d is on disk, %d was committed", disk, at)
	}
}

// TestAllDaemonsAreAskedToEnd: SIGTERM of all daemons at once, with or without the launchers, writes what is committed: no write needs a leader
// that went first.
func TestAllDaemonsAreAskedToEnd(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprintf("launchers too %v", both), func(t *testing.T) {
			t.Parallel()
			c, launchers := stopping(t)
			at := c.nodes[0].status().job("job").Position.Step
			for _, l := range launchers {
				if both {
					l.Signal(syscall.SIGTERM)
				}
			}
			endsWritten(t, c, at)
			if both {
				return
			}
			said := ""
			for _, l := range launchers {
				l.awaitText(0, "no daemon on ") // comes behind all that its daemon said
				said += l.output()
			}
			contains(t, said, "was asked to end: step") // by the daemon of one node at least: that of another may have gone first
		})
	}
}

// TestDaemonsAreAskedToEndAsTheyStart: the memory that they were started again over has the newest commit, which no leader has told them of yet.
func TestDaemonsAreAskedToEndAsTheyStart(t *testing.T) {
	t.Parallel()
	c, _ := stopping(t)
	at := c.nodes[0].status().job("job").Position.Step
	for _, n := range c.nodes {
		n.daemon.Kill()
		n.daemon.exit()
	}
	for _, n := range c.nodes {
		n.serve()
	}
	for _, n := range c.nodes {
		n.daemon.await("daemon_ready", nil)
	}
	endsWritten(t, c, at)
}

// TestOneDaemonIsAskedToEnd: the others have what is committed, and nothing is written for its sake.
func TestOneDaemonIsAskedToEnd(t *testing.T) {
	t.Parallel()
	c, _ := stopping(t)
	c.nodes[1].daemon.Signal(syscall.SIGTERM)
	if code := c.nodes[1].daemon.exit(); code != 0 {
		t.Errorf("its daemon ends with code %d", code)
	}
	if disk := newest(t, c.nodes[0]); disk != 0 {
		t.Errorf("step %d is on disk", disk)
	}
}

// TestSavedNow: what a job has committed is written when somebody asks for that, and training goes on.
func TestSavedNow(t *testing.T) {
	t.Parallel()
	c, launchers := stopping(t)
	at := c.nodes[0].statusWhen(linked).job("job").Position.Step
	code, out := c.nodes[0].answered("ckpt", "save", "job")
	if disk := newest(t, c.nodes[0]); code != 0 || disk < at || !strings.Contains(out, fmt.Sprintf("on disk: step %d", disk)) {
		t.Errorf("code %d, step %d is on disk, %d was committed\n%s", code, disk, at, out)
	}
	from := launchers[0].mark()
	launchers[0].awaitFrom(from, "step", nil)
	if launchers[0].saw(func(l line) bool { return l.is("fenced", nil) }) {
		t.Error("training was disturbed")
	}
}

// TestMultiplesAreWritten: --durable-every 50 writes steps 50, 100, ..., or says that one was passed.
func TestMultiplesAreWritten(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	var launchers []*process
	for i, n := range c.nodes {
		n.start()
		launchers = append(launchers, n.run("job", 2, rankSpec{}, "--ranks", fmt.Sprint(i), "--durable-every", "50"))
	}
	for range 3 {
		c.nodes[0].daemon.awaitFrom(c.nodes[0].daemon.mark(), "durable", nil)
	}
	found := finds(t, c.nodes[0])
	if len(found) == 0 {
		t.Error("nothing is written")
	}
	for _, f := range found {
		if f.Position.Step%50 != 0 {
			launchers[0].awaitText(0, "was not committed by itself") // why it is written
		}
		t.Logf("step %d is written", f.Position.Step)
	}
}
