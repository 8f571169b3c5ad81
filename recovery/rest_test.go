package recovery_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// training is a job of two ranks on two nodes, open and a few steps on.
func training(t *testing.T) *world {
	t.Helper()
	w := newWorld()
	w.addNode("a", 1, false, nil)
	w.addNode("b", 1, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{})
	w.must(t, w.wait(5*time.Second))
	for range 3 {
		w.must(t, w.step(true))
	}
	return w
}

func (w *world) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(w.said, "\n"))
	}
}

// on is where a rank runs.
func (w *world) on(r replica.Rank) *daemon { return w.nodes[w.state().Ranks[r].Node] }

// lose kills a rank, whose replacement takes long to start.
func (w *world) lose(t *testing.T, r replica.Rank) *daemon {
	t.Helper()
	d := w.on(r)
	d.procs[r].alive, d.slow = false, true
	d.offers++
	w.must(t, w.wait(time.Second))
	if !slices.Contains(d.starting, r) {
		t.Fatalf("no process is started for rank %d:\n%s", r, strings.Join(w.said, "\n"))
	}
	return d
}

// attach has the process that was started for a rank claim it; it comes to rest later.
func (w *world) attach(t *testing.T, d *daemon, r replica.Rank) *process {
	t.Helper()
	d.starting, d.slow = nil, false
	d.offers++
	w.must(t, w.start(r, d.holder.Node))
	p := d.procs[r]
	p.stopped, p.stuck = false, true
	return p
}

func (w *world) accused(kind replica.FaultKind) string {
	for _, s := range w.said {
		if strings.Contains(s, "propose fault in epoch ") && strings.Contains(s, kind.String()+" of ") {
			return s
		}
	}
	return ""
}

// A process that starts for longer than survivors have to come to rest has its time for that from its attach on, and while more
// of its memory comes into reach.
func TestASlowStartIsNoHang(t *testing.T) {
	w := training(t)
	d := w.lose(t, 0)
	w.must(t, w.wait(45*time.Second))
	p := w.attach(t, d, 0)
	for range 20 { // an arena of terabytes: a minute each
		p.progress++
		w.must(t, w.wait(time.Minute))
	}
	if s := w.accused(replica.Hang); s != "" {
		t.Fatalf("the process was starting, and: %s", s)
	}
	p.stuck = false
	w.must(t, w.wait(time.Second))
	if j := w.state(); j.Phase != replica.Open {
		t.Errorf("the job is %v:\n%s", j.Phase, strings.Join(w.said, "\n"))
	}
}

// One that gets on with nothing for timing.start is taken for a hang, by whoever leads then.
func TestAStartWithoutProgressIsAHang(t *testing.T) {
	w := training(t)
	d := w.lose(t, 0)
	w.must(t, w.wait(45*time.Second))
	w.attach(t, d, 0)
	w.newLeader()
	w.must(t, w.wait(w.timing.Start-time.Second))
	if s := w.accused(replica.Hang); s != "" {
		t.Fatalf("too early: %s", s)
	}
	w.must(t, w.wait(2*time.Second))
	if w.accused(replica.Hang) == "" {
		t.Fatalf("it is waited for for ever:\n%s", strings.Join(w.said, "\n"))
	}
}

// A survivor that does not come to rest has its time from the fault, whatever else happens, and the sign of life of another is none of its own.
func TestASurvivorThatStaysAway(t *testing.T) {
	w := training(t)
	w.on(1).procs[1].stuck = true
	d := w.lose(t, 0)
	w.must(t, w.wait(20*time.Second))
	p := w.attach(t, d, 0)
	for range 16 {
		p.progress++
		w.must(t, w.wait(time.Second))
	}
	if s := w.accused(replica.Hang); s != "" {
		t.Fatalf("too early: %s", s)
	}
	w.must(t, w.wait(5*time.Second))
	if s := w.accused(replica.Hang); !strings.Contains(s, "rank 1 ") {
		t.Errorf("want rank 1 named, not %q:\n%s", s, strings.Join(w.said, "\n"))
	}
}

// Who is waited for, and since when, is there to be read.
func TestWaitsAreNamed(t *testing.T) {
	w := training(t)
	d := w.lose(t, 0)
	d.pids = []uint64{19951}
	w.must(t, w.wait(40*time.Second))
	if got, want := strings.Join(w.leader.Awaited(w.now), "\n"), "rank 0: process 19951 on node b has run 41s and has not called resume() yet (rp_attach)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	d.halted = []replica.Rank{0}
	w.must(t, w.wait(time.Second))
	if got, want := strings.Join(w.leader.Awaited(w.now), "\n"), "rank 0: process 19951 on node b is stopped by a signal (kill -CONT 19951)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	d.halted = nil
	w.attach(t, d, 0)
	w.must(t, w.wait(10*time.Second))
	if got, want := strings.Join(w.leader.Awaited(w.now), "\n"), "rank 0: process 3 on node b has attached and has been on its way to rp_join for 10s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	w.on(1).procs[1].stopped, w.on(1).procs[1].stuck = false, true
	w.must(t, w.wait(time.Second))
	if got, want := strings.Join(w.leader.Awaited(w.now), "\n"), "rank 1: process 2 on node a runs on, 53s after the fault: it has not called resume() again (rp_join)"; !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What a survivor maps meanwhile (batches of a data loader in shared memory, a file that is read) is no step on its way to rp_join, nor is
// memory of a newcomer that comes and goes.
func TestMemoryThatComesAndGoesIsNoProgress(t *testing.T) {
	for _, rank := range []replica.Rank{1, 0} {
		w := training(t)
		w.on(1).procs[1].stuck = true
		d := w.lose(t, 0)
		p := w.on(1).procs[1]
		if rank == 0 {
			w.on(1).procs[1].stuck = false
			p = w.attach(t, d, 0)
			p.stopped, p.stuck = false, true
		}
		for i := range 3600 {
			p.progress = 100 + uint64(i%2)
			w.must(t, w.wait(time.Second))
		}
		if s := w.accused(replica.Hang); !strings.Contains(s, "rank") {
			t.Errorf("an hour after the fault rank %d is not named; the job is %v", rank, w.state().Phase)
		}
	}
}
