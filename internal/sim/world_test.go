package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// world is a cluster, the job on it, and what is known of them from outside: who lives, what was committed, which bytes a step has.
type world struct {
	t        *testing.T
	seed     uint64
	ctx      context.Context
	cluster  replica.ClusterID
	raft     *raft
	spooled  bool   // each machine has a spool
	disk     string // the directory of the durable tier
	names    []replica.NodeName
	machines map[replica.NodeName]*machine

	net     *network
	history history
	shape
	regions []replica.Region
	wanted  atomic.Uint32 // the moment that the script waits for
	sights  chan sight
	slowest float64      // bytes a second of a push that is not given up; 0: as by default
	slow    atomic.Int64 // nanoseconds, at most, until a daemon links to the next leader, as on a machine whose cores are taken

	mu        sync.Mutex    // guards what follows
	job       replica.JobID // the one that is watched
	nodes     replica.NodeIncarnation
	pids      int
	processes map[int]*process
	arrived   map[at]*collective
	deaf      map[replica.Part][]replica.NodeName // who does not take a part
	committed replica.Step
	begun     replica.Step // the furthest that any rank has begun
	last      replica.Step // of the job; 0: it has no end yet
	dissents  bool         // a rank has computed otherwise than its twins
	calm      bool         // no fault that may close an epoch has happened
	plans     map[replica.Epoch]wire.Order
	let       map[at]int // process that was let go in an epoch
	halves    map[replica.Generation]half
	gone      map[replica.Rank]bool
	done      chan struct{} // closed when the job has ended
	broken    chan struct{} // closed when something did not hold
	verdict   *wire.Refused
	failed    int
	faults    []string
	trace     bytes.Buffer
	began     time.Time
}

// The sizes of a rank's regions, in bytes: whole lines of 64, as an arena lays them out.
const private, frozen = 128, 6016

// at is a moment of a rank: rank and step, or epoch.
type at struct {
	epoch replica.Epoch
	step  replica.Step
	rank  replica.Rank
}

type collective struct {
	ranks map[replica.Rank]bool
	all   chan struct{}
}

func newWorld(t *testing.T, ctx context.Context, seed uint64, dir string) *world {
	w := &world{t: t, seed: seed, ctx: ctx, cluster: replica.ClusterID{0xc1}, shape: drawShape(rand.New(rand.NewPCG(seed, 1))), sights: make(chan sight, 64), machines: map[replica.NodeName]*machine{}, processes: map[int]*process{},
		arrived: map[at]*collective{}, calm: true, plans: map[replica.Epoch]wire.Order{}, let: map[at]int{}, halves: map[replica.Generation]half{}, gone: map[replica.Rank]bool{}, done: make(chan struct{}), broken: make(chan struct{}), pids: 1000, began: time.Now()}
	w.begun = w.start()
	w.disk = filepath.Join(dir, "durable")
	if err := os.MkdirAll(w.disk, 0o700); err != nil {
		t.Fatal(err)
	}
	w.regions = []replica.Region{
		{Name: "weight", DType: replica.F32, Shape: []uint64{w.weights / 4}, Bytes: w.weights},
		{Name: "rng", DType: replica.U8, Kind: replica.Private, Class: replica.Volatile, Shape: []uint64{private}, Bytes: private},
	}
	if w.frozen {
		w.regions = append(w.regions, replica.Region{Name: "base", DType: replica.F32, Class: replica.Frozen, Shape: []uint64{frozen / 4}, Bytes: frozen})
	}
	for i := range w.hosts {
		name := replica.NodeName(fmt.Sprintf("n%d", i+1))
		m := &machine{w: w, name: name, dir: fmt.Sprintf("%s/%s", dir, name), spare: i >= w.trainers, capacity: 1}
		for r := range w.world {
			if int(r)%w.trainers == i {
				m.prefers = append(m.prefers, replica.Rank(r))
				m.capacity = min(len(m.prefers)+1, int(w.world))
			}
		}
		if err := os.MkdirAll(m.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		w.names, w.machines[name] = append(w.names, name), m
	}
	w.raft = newRaft(w, w.names[:3])
	w.net = newNetwork(w.names, w.pace())
	w.tracef("%v", w.shape)
	return w
}

func (w *world) votes(n replica.NodeName) bool { return n == "n1" || n == "n2" || n == "n3" }

func (w *world) voterConfig() (list []config.Voter) {
	for _, n := range w.names[:3] {
		list = append(list, config.Voter{Name: n, Addr: string(n) + ":7000"})
	}
	return list
}

func (w *world) nextNode() replica.NodeIncarnation {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes++
	return w.nodes
}

func (w *world) nextPID() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pids++
	return w.pids
}

func (w *world) enter(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes[p.pid] = p
}

func (w *world) exit(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.processes, p.pid)
}

func (w *world) process(pid int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes[pid]
}

// alive are the processes of ranks, in the order of their start.
func (w *world) alive() (list []*process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pid := 1000; pid <= w.pids; pid++ {
		if p := w.processes[pid]; p != nil {
			list = append(list, p)
		}
	}
	return list
}

// ready tells whether each rank has a process that has attached, and none is stopped.
func (w *world) ready() bool {
	ranks := map[replica.Rank]bool{}
	for _, p := range w.alive() {
		p.mu.Lock()
		ready := p.thaw == nil && p.meets.Load()
		p.mu.Unlock()
		if !ready {
			return false
		}
		ranks[p.rank] = true
	}
	return len(ranks) == int(w.world)
}

func (w *world) killOn(m *machine) {
	for _, p := range w.alive() {
		if p.m == m {
			p.end(137)
		}
	}
}

// The host's Processes.
func (w *world) Alive(pid int, start uint64) bool {
	p := w.process(pid)
	if p == nil || p.start != start {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (w *world) Kill(pid int, start uint64) error {
	if p := w.process(pid); p != nil && p.start == start {
		w.tracef("the daemon kills process %d of rank %d", pid, p.rank)
		p.end(137)
	}
	return nil
}

func (w *world) Halted(pid int, start uint64) bool {
	p := w.process(pid)
	if p == nil || p.start != start {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.thaw != nil
}

// HaltedChild: every process that a launcher here started is its child.
func (w *world) HaltedChild(pid, _ int) bool {
	p := w.process(pid)
	return p != nil && w.Halted(pid, p.start)
}

func (w *world) Mapped(int) uint64          { return 0 }
func (w *world) Group(pid int) (int, error) { return pid, nil }

// content is what a part has at a step of a job without faults.
func (w *world) content(p replica.Part, s replica.Step) []byte {
	n := int(w.weights)
	switch p.Kind {
	case replica.PrivatePart:
		n = private
	case replica.FrozenPart:
		n, s = frozen, 0
	case replica.ReplicatedPart:
	}
	rng := rand.New(rand.NewPCG(w.seed<<16|uint64(p.Kind)<<8|uint64(p.Index), uint64(s)))
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

// arrive is a rank's gradients of a step; what it returns is closed once all have come.
func (w *world) arrive(e replica.Epoch, s replica.Step, r replica.Rank) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.arrived[at{epoch: e, step: s}]
	if c == nil {
		c = &collective{map[replica.Rank]bool{}, make(chan struct{})}
		w.arrived[at{epoch: e, step: s}] = c
	}
	if !c.ranks[r] {
		c.ranks[r] = true
		if len(c.ranks) == int(w.world) {
			close(c.all)
		}
	}
	return c.all
}

// What must hold, whatever happens.

// applied looks at each entry of the log.
func (w *world) applied(was, is lock.View, c replica.Command, out lock.Outcome) {
	for id, j := range is.Jobs {
		before := was.Jobs[id]
		if before == j {
			continue
		}
		w.tracef("entry %d, %T: %v, epoch %d, closed %d, position %v, committed %v", is.Index, c, j.Phase, j.Epoch, j.ClosedEpoch, j.Position, j.Committed)
		if j.Name != "job" {
			continue // of somebody else
		}
		w.mu.Lock()
		if w.job == (replica.JobID{}) {
			w.job = id
		}
		if id != w.job { // a launcher that first reaches its daemon after the end starts another job of the name
			if first := is.Jobs[w.job]; first != nil && first.Phase != replica.Ended {
				w.failLocked("job %v of the same name is there beside job %v", id, w.job)
			}
			w.mu.Unlock()
			continue
		}
		if j.Position.Step < w.committed {
			w.failLocked("P1: the job is at step %d, and step %d was committed", j.Position.Step, w.committed)
		}
		w.committed = max(w.committed, j.Position.Step)
		w.sees(before, j)
		happens(before, j)
		if before != nil && j.ClosedEpoch > before.ClosedEpoch && j.Phase != replica.Ended && before.Phase == replica.Open && w.calm {
			w.failLocked("P7: epoch %d is closed, and nothing but daemons and links have failed: %+v", j.ClosedEpoch, j.Faults)
		}
		w.mu.Unlock()
		if j.Plan != nil && (before == nil || before.Plan != j.Plan) && j.Plan.Tier() == replica.Disk {
			w.failf("P5: the plan of epoch %d reads a disk", j.Plan.Epoch)
		}
	}
	if out.Err != nil {
		w.tracef("%T is refused: %v", c, out.Err)
	}
}

// loads looks at what a rank is ordered to load.
func (w *world) loads(r *rank, o wire.Order) {
	w.tracef("rank %d, process %d: loads %v as step %d of epoch %d", r.of, r.pid, o.Generation, o.Step, r.epoch)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.other(r) {
		return
	}
	if other, ok := w.plans[r.epoch]; ok && (other.Generation != o.Generation || other.Step != o.Step) {
		w.failLocked("P4: in epoch %d rank %d is to load %v (step %d), another one %v (step %d)", r.epoch, r.of, o.Generation, o.Step, other.Generation, other.Step)
	}
	w.plans[r.epoch] = o
}

// other tells whether a rank is of a job that a launcher began after the end of the one that is watched. w.mu is held.
func (w *world) other(r *rank) bool { return r.welcome.Job != w.job }

// began is the step from which an epoch goes on.
func (w *world) startOf(e replica.Epoch) replica.Step {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.plans[e].Step
}

// went looks at a rank that was let go.
func (w *world) went(r *rank) {
	w.tracef("rank %d, process %d: goes from step %d in epoch %d", r.of, r.pid, r.has, r.epoch)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.other(r) {
		return
	}
	k := at{epoch: r.epoch, rank: r.of}
	if other := w.let[k]; other != 0 && other != r.pid {
		w.failLocked("P3: in epoch %d processes %d and %d train as rank %d", r.epoch, other, r.pid, r.of)
	}
	w.let[k] = r.pid
}

// makes looks at a rank that begins a step.
func (w *world) makes(r *rank, s replica.Step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.other(r) {
		return
	}
	w.begun = max(w.begun, s)
	if s <= w.committed && w.plans[r.epoch].Step >= s {
		w.failLocked("P1: rank %d makes step %d in epoch %d, which goes on from step %d", r.of, s, r.epoch, w.plans[r.epoch].Step)
	}
}

// leaves looks at a rank that says that it has finished. It may be killed before it hears that all have.
func (w *world) leaves(r *rank) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.other(r) {
		return
	}
	if r.has != w.last {
		w.failLocked("rank %d leaves at step %d of %d", r.of, r.has, w.last)
	}
	w.gone[r.of] = true
}

// half is who has sealed a generation, and who makes further steps without: one of each.
type half struct{ sealed, passed *rank }

// seals and passes tell the script where some ranks have a generation that others will never have. A crowd of steps is forgotten.
func (w *world) seals(r *rank, g replica.Generation) {
	w.halve(g, func(h *half) { h.sealed = r })
}

func (w *world) passes(r *rank, g replica.Generation) {
	w.halve(g, func(h *half) { h.passed = r })
}

func (w *world) halve(g replica.Generation, set func(*half)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.halves[g]
	set(&h)
	w.halves[g] = h
	for old := range w.halves {
		if old.Epoch < g.Epoch || old.Step+16 < g.Step {
			delete(w.halves, old)
		}
	}
	if h.sealed != nil && h.passed != nil {
		w.see(sight{moment: splitting, at: h.sealed.m, rank: h.sealed.process, on: w.uncommitted(g)})
	}
}

// uncommitted tells whether the job is open in a generation's epoch, and not committed as far.
func (w *world) uncommitted(g replica.Generation) func() bool {
	return func() bool {
		j := w.now()
		return j != nil && j.Phase == replica.Open && j.Epoch == g.Epoch && j.Committed.Compare(g) < 0
	}
}

// finish has the job end in a few steps: ranks that are two steps ahead of others there are none.
func (w *world) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == 0 {
		w.last = w.begun + 3
	}
}

// furthest is the step that any rank has begun last.
func (w *world) furthest() replica.Step {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun
}

// goesOn tells whether there is a step after one.
func (w *world) goesOn(s replica.Step) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last == 0 || s < w.last
}

// finished is the end of the job, as a launcher hears of it.
func (w *world) finished(v wire.Refused) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.verdict == nil {
		w.verdict = &v
		close(w.done)
	}
}

// over tells whether the job has ended.
func (w *world) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// end ends all machines at once. What a daemon still reports of the processes that died with it is no fault of the job's.
func (w *world) end() {
	w.mu.Lock()
	w.calm = false
	w.mu.Unlock()
	for _, n := range w.names {
		w.machines[n].crash()
	}
}

func (w *world) failf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failLocked(format, args...)
}

func (w *world) failLocked(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.traceLocked("FAILED: " + text)
	if w.failed++; w.failed > 5 {
		return // what comes of the first
	}
	if w.failed == 1 {
		close(w.broken)
	}
	w.t.Errorf("seed %d, after %v: %s", w.seed, time.Since(w.began), text)
}

const traceLimit = 64 << 20

func (w *world) tracef(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.traceLocked(fmt.Sprintf(format, args...))
}

func (w *world) traceLocked(text string) {
	if w.trace.Len() < traceLimit {
		fmt.Fprintf(&w.trace, "%12v %s\n", time.Since(w.began).Round(time.Microsecond), text)
	}
}

// out is where a daemon's log goes.
func (w *world) out(n replica.NodeName) io.Writer { return &lines{w, n} }

type lines struct {
	w *world
	n replica.NodeName
}

func (l *lines) Write(b []byte) (int, error) {
	l.w.tracef("%s: %s", l.n, bytes.TrimRight(b, "\n"))
	return len(b), nil
}

// twins tells whether a rank's group has others.
func (w *world) twins(r replica.Rank) bool {
	n := 0
	for _, g := range w.groups {
		if g == w.groups[r] {
			n++
		}
	}
	return n > 1
}

// dissentAt is the byte in which the state of a rank differs that computes otherwise than its twins.
const dissentAt = 64

func (w *world) dissented() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dissents
}

// happens counts what an entry comes to.
func happens(before, j *replica.Job) {
	if before == nil {
		return
	}
	if before.Phase != j.Phase {
		report.happens("entries: " + j.Phase.String())
	}
	if before.Phase != replica.Open && j.Phase == replica.Open && j.Degraded {
		report.happens("degraded resumes")
	}
	if len(j.Disputed) > len(before.Disputed) {
		report.happens("disputes")
	}
	if len(j.Condemned) > len(before.Condemned) {
		report.happens("condemned")
	}
	if before.Phase == replica.Planned && j.Phase == replica.Closed {
		report.happens("recoveries broken off")
	}
}
