package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
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
	names    []replica.NodeName
	machines map[replica.NodeName]*machine

	// The job.
	world   uint32
	groups  []replica.GroupID
	slots   int
	cadence uint32
	steps   replica.Step
	frozen  bool
	warm    bool          // processes are there in no time
	pass    time.Duration // of a forward and backward pass, at least
	regions []replica.Region

	mu        sync.Mutex // guards what follows
	rng       *rand.Rand
	job       replica.JobID // the one that is watched
	nodes     replica.NodeIncarnation
	pids      int
	processes map[int]*process
	cuts      map[[2]replica.NodeName][]net.Conn // pairs that do not hear each other, and what they had open
	open      map[[2]replica.NodeName][]net.Conn
	arrived   map[at]*collective
	deaf      map[replica.Part][]replica.NodeName // who does not take a part
	committed replica.Step
	calm      bool // no fault that may close an epoch has happened
	plans     map[replica.Epoch]wire.Order
	let       map[at]int // process that was let go in an epoch
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
const weights, private, frozen = 10048, 128, 6016

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
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{t: t, seed: seed, ctx: ctx, cluster: replica.ClusterID{0xc1}, rng: rand.New(rand.NewPCG(seed, 2)), machines: map[replica.NodeName]*machine{}, processes: map[int]*process{}, cuts: map[[2]replica.NodeName][]net.Conn{},
		open: map[[2]replica.NodeName][]net.Conn{}, arrived: map[at]*collective{}, calm: true, plans: map[replica.Epoch]wire.Order{}, let: map[at]int{}, gone: map[replica.Rank]bool{}, done: make(chan struct{}), broken: make(chan struct{}), pids: 1000, began: time.Now()}
	hosts := 3 + rng.IntN(3)
	w.world = uint32(2 + rng.IntN(3))
	groups := 1 + rng.IntN(2)
	for r := range w.world {
		w.groups = append(w.groups, replica.GroupID(int(r)%groups))
	}
	w.slots, w.steps, w.frozen = 2+rng.IntN(3), replica.Step(15+rng.IntN(25)), rng.IntN(3) == 0
	w.cadence = []uint32{0, 0, 2, 5, 9}[rng.IntN(5)]
	w.warm, w.pass = rng.IntN(2) == 0, []time.Duration{10 * time.Millisecond, 40 * time.Millisecond, 250 * time.Millisecond}[rng.IntN(3)]
	w.regions = []replica.Region{
		{Name: "weight", DType: replica.F32, Shape: []uint64{weights / 4}, Bytes: weights},
		{Name: "rng", DType: replica.U8, Kind: replica.Private, Class: replica.Volatile, Shape: []uint64{private}, Bytes: private},
	}
	if w.frozen {
		w.regions = append(w.regions, replica.Region{Name: "base", DType: replica.F32, Class: replica.Frozen, Shape: []uint64{frozen / 4}, Bytes: frozen})
	}
	trainers := min(hosts, 2+rng.IntN(2))
	for i := range hosts {
		name := replica.NodeName(fmt.Sprintf("n%d", i+1))
		m := &machine{w: w, name: name, dir: fmt.Sprintf("%s/%s", dir, name), spare: i >= trainers, capacity: 1}
		for r := range w.world {
			if int(r)%trainers == i {
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
	w.tracef("%d nodes, %d of them train; %d ranks in %d groups, %d slots, cadence %d, %d steps, frozen %v, warm %v, a pass of %v", hosts, trainers, w.world, groups, w.slots, w.cadence, w.steps, w.frozen, w.warm, w.pass)
	return w
}

func (w *world) votes(n replica.NodeName) bool { return n == "n1" || n == "n2" || n == "n3" }

func (w *world) voterConfig() (list []config.Voter) {
	for _, n := range w.names[:3] {
		list = append(list, config.Voter{Name: n, Addr: string(n) + ":7000"})
	}
	return list
}

// delay is some milliseconds, of which no two are equal: what happens at one moment happens in no order that a seed could fix.
func (w *world) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rng.Int64N(int64(8 * time.Millisecond)))
}

// chance is a number from 0 to 1.
func (w *world) chance() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.Float64()
}

// starts is how long a process takes from its start to its first word.
func (w *world) starts() time.Duration {
	if w.warm {
		return w.delay()
	}
	return 100*time.Millisecond + 20*w.delay()
}

// computes is how long a forward and backward pass takes.
func (w *world) computes() time.Duration { return w.pass + 6*w.delay() }

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

func (w *world) Mapped(int) uint64          { return 0 }
func (w *world) Group(pid int) (int, error) { return pid, nil }

func pair(a, b replica.NodeName) [2]replica.NodeName {
	if a > b {
		a, b = b, a
	}
	return [2]replica.NodeName{a, b}
}

func (w *world) cut(a, b replica.NodeName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cutLocked(a, b)
}

func (w *world) cutLocked(a, b replica.NodeName) bool {
	_, is := w.cuts[pair(a, b)]
	return is
}

// gossips tells whether one node hears of another, by itself or by a third.
func (w *world) gossips(a, b replica.NodeName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.names, func(c replica.NodeName) bool { return !w.cutLocked(a, c) && !w.cutLocked(c, b) })
}

// reaches tells whether a node hears any other: the collectives of its ranks go over the same wires.
func (w *world) reaches(n replica.NodeName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.names, func(c replica.NodeName) bool { return c != n && !w.cutLocked(n, c) })
}

// track has a connection end when its pair is cut.
func (w *world) track(a, b replica.NodeName, c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[pair(a, b)] = append(w.open[pair(a, b)], c)
}

// sever keeps two nodes from hearing each other; mend ends that.
func (w *world) sever(a, b replica.NodeName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts[pair(a, b)] = nil
	for _, c := range w.open[pair(a, b)] {
		c.Close()
	}
	delete(w.open, pair(a, b))
}

// hangUp ends what two nodes have open; they may connect anew.
func (w *world) hangUp(a, b replica.NodeName) {
	w.sever(a, b)
	w.mend(a, b)
}

func (w *world) mend(a, b replica.NodeName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.cuts, pair(a, b))
}

// content is what a part has at a step of a job without faults.
func (w *world) content(p replica.Part, s replica.Step) []byte {
	n := weights
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
	if other, ok := w.plans[r.epoch]; ok && (other.Generation != o.Generation || other.Step != o.Step) {
		w.failLocked("P4: in epoch %d rank %d is to load %v (step %d), another one %v (step %d)", r.epoch, r.of, o.Generation, o.Step, other.Generation, other.Step)
	}
	w.plans[r.epoch] = o
}

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
	if s <= w.committed && w.plans[r.epoch].Step >= s {
		w.failLocked("P1: rank %d makes step %d in epoch %d, which goes on from step %d", r.of, s, r.epoch, w.plans[r.epoch].Step)
	}
}

// leaves looks at a rank that says that it has finished. It may be killed before it hears that all have.
func (w *world) leaves(r *rank) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.has != w.steps {
		w.failLocked("rank %d leaves at step %d of %d", r.of, r.has, w.steps)
	}
	w.gone[r.of] = true
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
