package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/replicad/replicad/replica"
)

// script is what goes wrong in an episode.
type script struct {
	w           *world
	rng, rng2   *rand.Rand
	left        int // faults that are still to come
	daemonsOnly bool
	crashed     time.Time
	flipped     bool
	last, ended time.Time // the last fault or mending, the end of the job
	tasks       []task
}

// task is something that mends a fault later.
type task struct {
	at time.Time
	fn func()
}

func newScript(w *world) *script {
	rng := rand.New(rand.NewPCG(w.seed, 3))
	return &script{w: w, rng: rng, rng2: rand.New(rand.NewPCG(w.seed, 4)), left: 1 + rng.IntN(6), daemonsOnly: rng.IntN(6) == 0}
}

func (s *script) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.rng.Int64N(int64(most-least)))
}

// run plays the job until its end.
func (s *script) run() {
	next := time.Now().Add(s.between(0, 3*time.Second))
	over := time.Now().Add(*most)
	for {
		now := time.Now()
		for i := 0; i < len(s.tasks); {
			if !s.tasks[i].at.After(now) {
				fn := s.tasks[i].fn
				s.tasks = append(s.tasks[:i], s.tasks[i+1:]...)
				fn()
				s.last = now
			} else {
				i++
			}
		}
		if s.left > 0 && !next.After(now) {
			s.fault()
			s.last = now
			next = now.Add(s.between(0, 3*time.Second))
		}
		select {
		case <-s.w.done:
			s.ended = time.Now()
			time.Sleep(10 * time.Second) // ranks take their time to hear of it
			s.judge()
			return
		case <-s.w.broken:
			return
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(over) {
			s.w.failf("P6: the job has not ended after %v: %d faults, committed step %d of %d", *most, len(s.w.faults), s.w.committed, s.w.steps)
			return
		}
	}
}

// lastGrace is how long before the end of a job a fault may keep its last step from being committed: a rank that leaves waits 5 s for a slot.
const lastGrace = 15 * time.Second

// judge looks at the end.
func (s *script) judge() {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.verdict.Code != 0 {
		w.failLocked("P6: the job ends with status %d: %s", w.verdict.Code, w.verdict.Text)
	} else if len(w.gone) != int(w.world) {
		w.failLocked("P6: the job has ended, and %d of %d ranks have left", len(w.gone), w.world)
	} else if w.committed != w.steps && s.ended.Sub(s.last) > lastGrace {
		w.failLocked("P6: the job ends with step %d of %d committed, and nothing failed in its last %v", w.committed, w.steps, lastGrace)
	}
}

func (s *script) later(d time.Duration, fn func()) {
	s.tasks = append(s.tasks, task{time.Now().Add(d), fn})
}

func (s *script) note(format string, args ...any) {
	text := fmt.Sprintf("%v ", time.Since(s.w.began).Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	s.w.faults = append(s.w.faults, text)
	s.w.tracef("FAULT: %s", text)
	s.left--
}

func (s *script) fault() {
	kinds := []func() bool{s.killRank, s.killRank, s.killDaemon, s.crash, s.crash, s.depose, s.killDaemons, s.sever, s.isolate, s.stopRank, s.raise, s.flip, s.hangUp}
	if s.daemonsOnly {
		kinds = []func() bool{s.killDaemon, s.killDaemon, s.depose, s.killDaemons}
	}
	kinds[s.rng.IntN(len(kinds))]()
}

func (s *script) uncalm() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.calm = false
}

func (s *script) killRank() bool {
	list := s.w.alive()
	if len(list) == 0 {
		return false
	}
	p := list[s.rng.IntN(len(list))]
	s.uncalm()
	s.note("process %d of rank %d on %s is killed", p.pid, p.rank, p.m.name)
	p.end(137)
	return true
}

// voters are those whose daemons run.
func (s *script) voters() (n int) {
	for _, v := range s.w.raft.voters {
		if s.w.machines[v].running() != nil {
			n++
		}
	}
	return n
}

func (s *script) killDaemon() bool {
	m := s.w.machines[s.w.names[s.rng.IntN(len(s.w.names))]]
	if m.running() == nil {
		return false
	}
	long := s.between(50*time.Millisecond, 6*time.Second)
	s.note("the daemon of %s is killed, and started again %v later", m.name, long.Round(time.Millisecond))
	m.kill()
	s.later(long, func() { s.again(m) })
	return true
}

// again starts a machine's daemon, unless the machine is down or has one.
func (s *script) again(m *machine) {
	if up, _ := m.life(); up && m.running() == nil {
		m.start()
	}
}

func (s *script) killDaemons() bool {
	s.note("all daemons are killed, and started again within seconds")
	for _, n := range s.w.names {
		m := s.w.machines[n]
		m.kill()
		s.later(s.between(50*time.Millisecond, 4*time.Second), func() { s.again(m) })
	}
	return true
}

func (s *script) depose() bool {
	s.note("the leader falls")
	s.w.raft.depose()
	return true
}

func (s *script) sever() bool {
	a, b := s.w.names[s.rng.IntN(len(s.w.names))], s.w.names[s.rng.IntN(len(s.w.names))]
	if a == b || s.w.cut(a, b) {
		return false
	}
	long := s.between(100*time.Millisecond, 8*time.Second)
	s.uncalm()
	s.note("%s and %s do not hear each other for %v", a, b, long.Round(time.Millisecond))
	s.w.sever(a, b)
	s.later(long, func() { s.w.mend(a, b) })
	return true
}

// isolate keeps a node from hearing anybody.
func (s *script) isolate() bool {
	n := s.w.names[s.rng.IntN(len(s.w.names))]
	if !s.w.reaches(n) || s.w.votes(n) && s.voters() < 3 {
		return false
	}
	long := s.between(100*time.Millisecond, 30*time.Second)
	s.uncalm()
	s.note("%s hears nobody for %v", n, long.Round(time.Millisecond))
	for _, other := range s.w.names {
		if other != n {
			s.w.sever(n, other)
		}
	}
	s.later(long, func() {
		for _, other := range s.w.names {
			if other != n {
				s.w.mend(n, other)
			}
		}
	})
	return true
}

// stopRank stops a process by a signal: for a while, or until somebody kills it.
func (s *script) stopRank() bool {
	list := s.w.alive()
	if len(list) == 0 {
		return false
	}
	p := list[s.rng.IntN(len(list))]
	long := s.between(100*time.Millisecond, 4*time.Minute)
	s.uncalm()
	s.note("process %d of rank %d on %s is stopped for %v", p.pid, p.rank, p.m.name, long.Round(time.Millisecond))
	p.stop()
	s.later(long, p.cont)
	return true
}

// raise has a process meet an exception.
func (s *script) raise() bool {
	list := s.w.alive()
	if len(list) == 0 {
		return false
	}
	p := list[s.rng.IntN(len(list))]
	s.uncalm()
	s.note("process %d of rank %d on %s meets an exception", p.pid, p.rank, p.m.name)
	p.fail()
	return true
}

// hangUp breaks all connections between two nodes: what was on its way stops half.
func (s *script) hangUp() bool {
	a, b := s.w.names[s.rng.IntN(len(s.w.names))], s.w.names[s.rng.IntN(len(s.w.names))]
	if a == b || s.w.cut(a, b) {
		return false
	}
	s.uncalm()
	s.note("what %s and %s have open breaks", a, b)
	s.w.hangUp(a, b)
	return true
}

// flip changes a bit of one copy of what is committed, where another copy is left. From then on no node is lost: which copies are good the
// log does not say.
func (s *script) flip() bool {
	if s.flipped || !s.crashed.IsZero() {
		return false
	}
	for _, j := range s.w.raft.now().Jobs {
		if len(j.Parts) == 0 || j.Committed.IsZero() {
			return false
		}
		p := j.Parts[s.rng.IntN(len(j.Parts))]
		if len(p.Holders) < 2 {
			return false
		}
		m := s.w.machines[p.Holders[s.rng.IntN(len(p.Holders))].Node]
		if !s.w.flip(m, s.w.content(p.Part, j.Position.Step)) {
			return false
		}
		s.flipped = true
		s.uncalm()
		s.note("a bit of %v of step %d flips in the memory of %s", p.Part, j.Position.Step, m.name)
		return true
	}
	return false
}

// crash takes a node away, where the job's promise covers that: each committed part has another holder.
func (s *script) crash() bool {
	m := s.w.machines[s.w.names[s.rng.IntN(len(s.w.names))]]
	up, _ := m.life()
	if !up || s.flipped || time.Since(s.crashed) < 2*time.Second || s.w.votes(m.name) && s.voters() < 3 || !s.spared(m.name) {
		return false
	}
	long := s.between(time.Second, 40*time.Second)
	s.uncalm()
	s.note("node %s is lost, and comes back empty %v later", m.name, long.Round(time.Millisecond))
	s.crashed = time.Now()
	m.crash()
	s.later(long, m.boot)
	return true
}

// spared tells whether all that is committed has a holder besides a node.
func (s *script) spared(victim replica.NodeName) bool {
	for _, j := range s.w.raft.now().Jobs {
		for _, p := range j.Parts {
			kept := false
			for _, h := range p.Holders {
				up, inc := s.w.machines[h.Node].life()
				kept = kept || h.Node != victim && up && inc == h.Incarnation
			}
			if !kept {
				return false
			}
		}
	}
	return true
}
