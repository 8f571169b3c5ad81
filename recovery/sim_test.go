package recovery_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

var (
	simSeed = flag.Uint64("sim.seed", 0, "run only this seed of the simulation, and print what happened")
	simRuns = flag.Int("sim.runs", 250, "seeds to run")
)

// TestSimulation drives the leader and the real state machine through random faults, with events repeated and out of order,
// and checks P1 (no committed step is given up while holders live), P4 (all ranks resume at one valid generation) and that the
// job goes on once faults end.
func TestSimulation(t *testing.T) {
	ends, grew, tookBack := map[string]int{}, 0, 0
	for run := range uint64(*simRuns) {
		seed := run + 1
		if *simSeed != 0 {
			seed = *simSeed
		}
		s := newSim(seed, recovery.DefaultTiming())
		s.lives, s.grows = true, true
		err := s.run()
		ends[s.outcome]++
		grew, tookBack = grew+s.w.grew, tookBack+s.w.tookBack
		if err != nil || *simSeed != 0 {
			t.Logf("seed %d:\n%s", seed, strings.Join(s.w.said, "\n"))
		}
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if *simSeed != 0 {
			return
		}
	}
	if grew < *simRuns/5 || tookBack < *simRuns/50 {
		t.Errorf("%d growths and %d taken back in %d runs: the simulation has grown too tame", grew, tookBack, *simRuns)
	}
	if ends["goes on"] < *simRuns/2 || ends["below"] != 0 {
		t.Errorf("outcomes %v: most jobs should go on", ends)
	}
	t.Logf("outcomes %v, %d growths, %d taken back", ends, grew, tookBack)
}

type sim struct {
	w       *world
	r       *rand.Rand
	down    map[replica.NodeName]time.Duration // when each last went down
	up      map[replica.NodeName]time.Duration // when each last came back
	dead    map[replica.NodeName]bool          // its memory is gone when it comes back
	lives   bool                               // keeper and daemon may start anew beside living ranks
	grows   bool                               // ranks may ask for other regions
	seen    []recovery.Event
	broken  error
	outcome string
}

// TestSimulationNotices runs the simulation with a leader that doesn't wait for holders: P1 must be seen to break.
func TestSimulationNotices(t *testing.T) {
	timing := recovery.DefaultTiming()
	timing.HolderGrace = 0
	for seed := range uint64(200) {
		if err := newSim(seed+1, timing).run(); err != nil && strings.HasPrefix(err.Error(), "P1") {
			return
		}
	}
	t.Error("200 runs without holder_grace, and P1 held in all: the check sees nothing")
}

// TestSimulationNoticesHeirs plants back the bug that docs/heir.md tells of: a process takes the words in its dead predecessor's arena for
// its own and seals what it never loaded. P2 must be seen to break.
func TestSimulationNoticesHeirs(t *testing.T) {
	for seed := range uint64(1000) {
		s := newSim(seed+1, recovery.DefaultTiming())
		s.w.heirs = true
		if err := s.run(); err != nil && strings.HasPrefix(err.Error(), "P2") {
			t.Logf("seen in episode %d: %v", seed+1, err)
			return
		}
	}
	t.Error("1000 episodes with heirs, and P2 held in all: the check sees nothing")
}

func newSim(seed uint64, timing recovery.Timing) *sim {
	s := &sim{w: newWorld(), r: rand.New(rand.NewPCG(seed, 2)), down: map[replica.NodeName]time.Duration{}, up: map[replica.NodeName]time.Duration{}, dead: map[replica.NodeName]bool{}}
	for _, n := range []replica.NodeName{"a", "b", "c"} {
		s.w.addNode(n, 2, false, nil)
	}
	s.w.addNode("s", 4, true, nil)
	s.w.timing = timing
	s.w.onPlan = func(j *replica.Job) {
		for _, src := range j.Plan.Sources {
			if s.broken == nil && src.Root != root(src.Part, j.Plan.Generation) {
				s.broken = fmt.Errorf("P2: plan %s takes %v under a root of no state that was trained", describePlan(*j.Plan), src.Part)
			}
		}
		if s.broken == nil && (j.Plan.CommittedLost > 0 || j.Plan.Tier() == replica.Disk) {
			s.broken = s.lost(j)
		}
	}
	if rand.New(rand.NewPCG(seed, 3)).IntN(3) == 0 {
		s.w.from = begun(2180)
	}
	layouts := [][]replica.GroupID{{0, 1, 0, 1}, {0, 0, 0}, {0, 1}, {0}}
	s.w.create(layouts[s.r.IntN(len(layouts))], replica.Options{DurableEvery: replica.Step(s.r.IntN(2)), Slots: 2 + s.r.IntN(3)})
	return s
}

func (s *sim) run() error {
	if err := s.wait(20 * time.Second); err != nil {
		return err
	}
	for range 60 {
		if s.ended() {
			break
		}
		s.act()
		if s.r.IntN(3) > 0 {
			if err := s.wait(time.Duration(s.r.IntN(3000)) * time.Millisecond); err != nil {
				return err
			}
		}
		if err := s.check(); err != nil {
			return err
		}
	}
	return s.recover()
}

func (s *sim) ended() bool { return s.w.state().Phase == replica.Ended }

// wait lets time pass with events repeated and out of order, then in order, as level-triggered senders do in the end.
func (s *sim) wait(d time.Duration) error {
	for range s.r.IntN(3) {
		if len(s.seen) > 0 {
			s.w.feed(s.seen[s.r.IntN(len(s.seen))])
		}
	}
	if len(s.w.queue) > 1 && s.r.IntN(2) == 0 {
		s.r.Shuffle(len(s.w.queue), func(i, j int) { s.w.queue[i], s.w.queue[j] = s.w.queue[j], s.w.queue[i] })
	}
	for _, ev := range s.w.queue {
		switch ev.(type) { // a control stream's end is told once, in its place; a scan belongs to its time
		case recovery.NodeGone, recovery.NodeUp, recovery.DurableFound, recovery.Outcome:
		default:
			s.seen = append(s.seen, ev)
		}
	}
	err := s.w.wait(d)
	for n := range s.w.nodes { // whatever was repeated, the streams that are down end last
		if !s.w.nodes[n].up {
			s.w.feed(recovery.NodeGone{Node: n})
		}
	}
	return err
}

func (s *sim) node(up bool) (replica.NodeName, *daemon) {
	var names []replica.NodeName
	for _, n := range s.w.names() {
		if s.w.nodes[n].up == up {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	n := names[s.r.IntN(len(names))]
	return n, s.w.nodes[n]
}

func (s *sim) act() {
	w, j := s.w, s.w.state()
	acts := 18
	if s.grows {
		acts = 20
	}
	switch s.r.IntN(acts) {
	case 0, 1, 2, 3, 4:
		for range 1 + s.r.IntN(3) {
			if w.step(s.r.IntN(4) > 0) != nil {
				break
			}
		}
		if j := w.state(); j.Phase == replica.Open && j.Options.DurableEvery > 0 && s.r.IntN(3) == 0 {
			w.addDurable(j.Committed)
		}
	case 5:
		s.straggle(j)
	case 6:
		s.unsealed()
	case 7, 8:
		r := replica.Rank(s.r.IntN(len(j.Ranks)))
		for _, d := range w.nodes {
			if p := d.procs[r]; p != nil && p.alive && d.up {
				p.alive = false
				d.offers++
			}
		}
	case 9:
		if n, d := s.node(true); d != nil {
			s.down[n], s.dead[n] = w.now, true
			w.dieNode(n)
			if s.r.IntN(2) == 0 {
				w.queue = append(w.queue, recovery.Evidence{Fault: replica.Fault{Kind: replica.NodeDead, Node: n, NodeIncarnation: d.holder.Incarnation}})
			}
		}
	case 10:
		if n, d := s.node(true); d != nil {
			s.down[n] = w.now
			w.stopDaemon(n)
		}
	case 11, 12:
		if n, d := s.node(false); d != nil {
			s.back(n)
		}
	case 13:
		w.newLeader()
		s.seen = nil
	case 14:
		r := replica.Rank(s.r.IntN(len(j.Ranks)))
		w.queue = append(w.queue, recovery.Evidence{Fault: replica.Fault{Kind: replica.Exception, Rank: r, Incarnation: j.Ranks[r].Incarnation, Epoch: j.Epoch}})
	case 16: // an operator drains a node
		n := w.names()[s.r.IntN(len(w.nodes))]
		w.apply(replica.Quarantine{Job: w.job, Node: n})
		w.apply(replica.ReportFault{Job: w.job, Fault: replica.Fault{Epoch: j.Epoch, Kind: replica.Drain, Node: n, NodeIncarnation: w.nodes[n].holder.Incarnation}})
	case 17:
		s.clear()
	case 18, 19:
		s.grow(j)
	case 15:
		w.now += time.Duration(s.r.IntN(20)) * time.Second
	}
}

// grow has the ranks ask for other regions, most often all of them for the same, and at the committed step.
func (s *sim) grow(j *replica.Job) {
	if s.r.IntN(4) > 0 {
		_ = s.w.step(true) // all stand at a committed step then
	}
	var list []replica.Rank
	for r := range j.Ranks {
		if s.r.IntN(12) > 0 {
			list = append(list, replica.Rank(r))
		}
	}
	g := replica.RankGrowth{Geometry: replica.Digest{byte(s.r.IntN(250) + 1)}, Prepared: s.r.IntN(12) > 0}
	if s.r.IntN(12) == 0 {
		g.Refused, g.Prepared = "no memory", false
	}
	if r := replica.Rank(s.r.IntN(len(j.Ranks))); s.r.IntN(3) == 0 { // it never seals, or loads, what it has grown to
		if p := s.w.nodes[j.Ranks[r].Node].procs[r]; p != nil {
			p.unsealing, p.blocked = s.r.IntN(2) == 0, true
		}
	}
	s.w.ask(list, g)
}

// unsealed has every rank make a step that no slot holds, as most are with a cadence above one, or where commits lag. Some node may have no
// slot left when its live state is asked for.
func (s *sim) unsealed() {
	if !s.w.walk() {
		return
	}
	for _, n := range s.w.names() {
		s.w.nodes[n].noSlot = s.r.IntN(2) == 0
	}
}

// straggle has some ranks begin the next step, some of them finish it.
func (s *sim) straggle(j *replica.Job) {
	if j.Phase != replica.Open {
		return
	}
	g := replica.Generation{}
	for r, c := range j.Ranks {
		p := s.w.nodes[c.Node].procs[replica.Rank(r)]
		if p == nil || !p.alive || p.stopped || p.live.Epoch != j.Epoch {
			return
		}
		g = replica.Generation{Epoch: j.Epoch, Step: max(g.Step, p.live.Step+1)}
	}
	for r, c := range j.Ranks {
		p := s.w.nodes[c.Node].procs[replica.Rank(r)]
		if p.live.Step+1 != g.Step || s.r.IntN(3) == 0 {
			continue
		}
		s.w.seal(replica.Rank(r), g, replica.PrivatePart)
		if s.r.IntN(3) > 0 {
			p.live = g
			if s.r.IntN(3) > 0 {
				s.w.seal(replica.Rank(r), g, replica.ReplicatedPart)
			}
		}
	}
}

func (s *sim) back(n replica.NodeName) {
	switch {
	case s.dead[n]:
		s.w.boot(n)
	case s.r.IntN(2) == 0:
		s.w.connect(n)
	case s.lives && s.r.IntN(3) == 0:
		s.w.nextLife(n)
	default:
		s.w.startDaemon(n)
	}
	s.up[n] = s.w.now
	delete(s.dead, n)
}

// check looks at where the ranks resumed, and at what the plans since were.
func (s *sim) check() error {
	j := s.w.state()
	if j.Phase == replica.Open && len(j.Ranks) > 0 {
		for r, c := range j.Ranks {
			p := s.w.nodes[c.Node].procs[replica.Rank(r)]
			if p != nil && p.alive && p.inc == c.Incarnation && p.loaded == j.Epoch && (p.live.Epoch != j.Epoch || p.live.Step < j.Lineage.Last().Start) {
				return fmt.Errorf("P4: rank %d stands at %v in epoch %d, opened at %d", r, p.live, j.Epoch, j.Lineage.Last().Start)
			}
		}
	}
	return s.broken
}

// lost checks P1: some part of the committed generation has no holder that answers, and no recorded one that has been away
// for less than holder_grace.
func (s *sim) lost(j *replica.Job) error {
	for i, p := range allParts(j) {
		held := false
		for n, d := range s.w.nodes {
			if !slices.ContainsFunc(d.parts, func(h replica.Held) bool { return h.Part == p && h.Generation == j.Committed }) {
				continue
			}
			recorded := slices.Contains(j.Parts[i].Holders, d.holder)
			heard := d.up && s.up[n] < s.w.now // one that came back this very moment has not been heard yet
			held = held || heard || recorded && s.w.now-s.down[n] < recovery.DefaultTiming().HolderGrace
		}
		if !held {
			return nil
		}
	}
	return fmt.Errorf("P1: plan %s, though every part of the committed %v has a holder", describePlan(*j.Plan), j.Committed)
}

// gone checks that a job that ended for want of state had none: not in memory, not on disk.
func (s *sim) gone(j *replica.Job) error {
	grown := s.w.grown
	if slices.ContainsFunc(s.w.disk, func(d plan.DurableGen) bool { return d.Generation.Epoch >= grown }) {
		return fmt.Errorf("the job ended (%s), though %v is on disk", j.EndReason, s.w.disk[len(s.w.disk)-1].Generation)
	}
	for _, p := range allParts(&replica.Job{Layout: s.w.layout}) {
		if len(s.w.holders(p, j.Committed)) == 0 {
			return nil
		}
	}
	return fmt.Errorf("the job ended (%s), though every part of %v has a holder", j.EndReason, j.Committed)
}

// clear lets the job use every node again.
func (s *sim) clear() {
	for _, n := range slices.Clone(s.w.state().Quarantined) {
		s.w.apply(replica.Quarantine{Job: s.w.job, Node: n, Clear: true})
	}
}

// recover brings everything back and expects the job to go on.
func (s *sim) recover() error {
	s.clear()
	for _, n := range s.w.names() {
		if !s.w.nodes[n].up {
			s.back(n)
		}
	}
	for range 8 {
		if err := s.wait(30 * time.Second); err != nil {
			return err
		}
		if err := s.check(); err != nil {
			return err
		}
	}
	j := s.w.state()
	switch {
	case j.Phase == replica.Open:
		s.outcome = "goes on"
		return s.w.step(true)
	case j.Phase == replica.Ended && strings.HasPrefix(j.EndReason, "do not requeue"):
		s.outcome = "budget"
		return nil
	case j.Phase == replica.Ended && strings.HasPrefix(j.EndReason, "no generation"):
		s.outcome = "nothing left"
		return s.gone(j)
	}
	in := s.w.said[max(0, len(s.w.said)-8):]
	return fmt.Errorf("no progress: job is %v, epoch %d, closed %d, faults %v, ranks %v: %s", j.Phase, j.Epoch, j.ClosedEpoch, j.Faults, j.Ranks, strings.Join(in, "\n"))
}
