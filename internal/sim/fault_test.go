package sim

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// kind is what goes wrong.
type kind uint8

const (
	rankKilled   kind = iota
	rankStopped       // by a signal, for a while
	rankFrozen        // for ever
	rankRaises        // an exception
	rankDissents      // its state differs from its twins'
	daemonKilled
	daemonsKilled // all
	keeperKilled
	nodeLost
	nodeApart // it hears nobody
	pairCut
	oneWayCut
	linksBreak
	leaderFalls
	leadersFall // one after another, while something is waited for
	bitFlips
	memoryShort
	nodeDrained
	diskEmptied // a voter's node is lost with its log
	kinds
)

func (k kind) String() string {
	return [...]string{"rank killed", "rank stopped", "rank frozen", "exception", "ranks differ", "daemon killed", "daemons killed", "keeper killed", "node lost", "node apart", "pair cut", "one-way cut", "links break", "leader falls", "leaders fall", "bit flips", "no memory", "drain", "disk emptied"}[k]
}

// faults are the kinds, as often as they are drawn.
var faults = []kind{rankKilled, rankKilled, rankKilled, rankFrozen, rankFrozen, rankStopped, rankRaises, rankDissents, daemonKilled, daemonKilled, daemonKilled, daemonsKilled, keeperKilled, keeperKilled, nodeLost, nodeLost, nodeLost, nodeApart, pairCut, oneWayCut, linksBreak, linksBreak, leaderFalls, leaderFalls, leadersFall, bitFlips, memoryShort, nodeDrained, diskEmptied, diskEmptied}

// fits tells whether a kind can come at a moment at all.
func (k kind) fits(m moment) bool {
	switch k {
	case rankDissents: // what it captures next is wrong
		return m == anytime || m == resumed || m == pinning
	case bitFlips:
		return m != opening && m != adopting
	case nodeDrained:
		return m != leaving && m != adopting
	default:
		return true
	}
}

// strike has a fault happen; false: it can't now.
func (s *script) strike(a aim) bool {
	return map[kind]func(sight) bool{rankKilled: s.killRank, rankStopped: s.stopRank, rankFrozen: s.freezeRank, rankRaises: s.raise, rankDissents: s.dissent, daemonKilled: s.killDaemon, daemonsKilled: s.killDaemons, keeperKilled: s.killKeeper,
		nodeLost: s.crash, nodeApart: s.isolate, pairCut: s.sever, oneWayCut: s.mute, linksBreak: s.hangUp, leaderFalls: s.depose, leadersFall: s.deposeAll, bitFlips: s.flip, memoryShort: s.starve, nodeDrained: s.drain, diskEmptied: s.emptyDisk}[a.kind](a.at)
}

// rank picks a process that runs: mostly one that the moment concerns.
func (s *script) rank(at sight) *process {
	list := s.w.alive()
	if len(list) == 0 {
		return nil
	}
	p := list[s.rng.IntN(len(list))]
	if s.rng.IntN(4) == 0 {
		return p
	}
	if at.moment == planned || at.moment == fetching {
		j := s.w.now()
		for _, q := range list {
			if replica.Epoch(q.holds.Load()) < j.Epoch {
				return q
			}
		}
	}
	if at.rank != nil && s.w.process(at.rank.pid) == at.rank {
		return at.rank
	}
	return p
}

// machine picks a node: mostly one that the moment concerns.
func (s *script) machine(at sight) *machine {
	m := s.w.machines[pick(s.rng, s.w.names...)]
	switch s.rng.IntN(8) {
	case 0, 1:
		return m
	case 2, 3, 4:
		if at.from != nil {
			return at.from
		}
	}
	if at.at != nil {
		return at.at
	}
	return m
}

// pair picks two nodes that hear each other: mostly two that the moment concerns, or the leader and one of them. False: it has none.
func (s *script) pair(at sight) (a, b replica.NodeName, ok bool) {
	a, b = s.machine(at).name, pick(s.rng, s.w.names...)
	if leads, _ := s.w.raft.leads(); at.from == nil && leads != "" && s.rng.IntN(2) == 0 {
		a, b = leads, s.machine(at).name
	}
	if at.from != nil && s.rng.IntN(4) > 0 {
		a, b = at.at.name, at.from.name
		if s.rng.IntN(2) == 0 {
			a, b = b, a
		}
	}
	return a, b, a != b && !s.w.net.cut(a, b)
}

func (s *script) killRank(at sight) bool {
	p := s.rank(at)
	if p == nil {
		return false
	}
	s.uncalm()
	s.note("process %d of rank %d on %s is killed", p.pid, p.rank, p.m.name)
	p.end(137)
	return true
}

// stopRank stops a process by a signal: for a while, or until somebody kills it.
func (s *script) stopRank(at sight) bool {
	p := s.rank(at)
	if p == nil {
		return false
	}
	long := s.between(100*time.Millisecond, time.Minute)
	s.uncalm()
	s.note("process %d of rank %d on %s is stopped for %v", p.pid, p.rank, p.m.name, long.Round(time.Millisecond))
	p.stop()
	s.later(long, p.cont)
	return true
}

// freezeRank stops a process for good: whoever waits for it must kill it.
func (s *script) freezeRank(at sight) bool {
	p := s.rank(at)
	if p == nil {
		return false
	}
	s.uncalm()
	s.note("process %d of rank %d on %s is stopped for good", p.pid, p.rank, p.m.name)
	p.stop()
	return true
}

// raise has a process meet an exception.
func (s *script) raise(at sight) bool {
	p := s.rank(at)
	if p == nil {
		return false
	}
	s.uncalm()
	s.note("process %d of rank %d on %s meets an exception", p.pid, p.rank, p.m.name)
	p.fail()
	return true
}

// dissent has a process of a group of several compute otherwise than its twins, until it loads anew.
func (s *script) dissent(at sight) bool {
	p := s.rank(at)
	if p == nil || s.w.dissents || !s.w.twins(p.rank) {
		return false
	}
	s.uncalm()
	s.w.mu.Lock()
	s.w.dissents = true
	s.w.mu.Unlock()
	s.note("process %d of rank %d on %s computes otherwise than its twins", p.pid, p.rank, p.m.name)
	p.wrong.Store(true)
	return true
}

func (s *script) killDaemon(at sight) bool {
	m := s.machine(at)
	if m.running() == nil || m.fragile() && !s.losable(m) {
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
		m.serve()
	}
}

func (s *script) killDaemons(sight) bool {
	for _, m := range s.w.machines {
		if up, _ := m.life(); up && m.fragile() {
			return false
		}
	}
	s.note("all daemons are killed, and started again within seconds")
	for _, n := range s.w.names {
		m := s.w.machines[n]
		m.kill()
		s.later(s.between(50*time.Millisecond, 4*time.Second), func() { s.again(m) })
	}
	return true
}

// killKeeper kills a node's keeper; its supervisor starts another one, and somebody starts the daemon again, as its log asks for.
func (s *script) killKeeper(at sight) bool {
	m := s.machine(at)
	if up, _ := m.life(); !up || s.flipped || m.running() == nil || m.fragile() || s.w.votes(m.name) && s.voters() < 3 {
		return false
	}
	long := s.between(500*time.Millisecond, 5*time.Second)
	s.uncalm()
	s.note("the keeper of %s is killed and replaced; its daemon is started again about %v later", m.name, long.Round(time.Millisecond))
	m.replaceKeeper()
	s.later(long, func() { s.restart(m) })
	return true
}

// restart starts a daemon again that has lost its keeper, once no step is lost by that.
func (s *script) restart(m *machine) {
	if up, _ := m.life(); !up || !m.fragile() {
		return
	}
	if m.running() == nil || s.losable(m) {
		s.crashed = time.Now()
		m.kill()
		m.serve()
		return
	}
	s.later(time.Second, func() { s.restart(m) })
}

// crash takes a node away, where the job's promise covers that: each committed part has another holder.
func (s *script) crash(at sight) bool {
	m := s.machine(at)
	if up, _ := m.life(); !up || s.w.votes(m.name) && s.voters() < 3 || !s.losable(m) {
		return false
	}
	long := s.between(time.Second, 40*time.Second)
	s.uncalm()
	s.note("node %s is lost, and comes back empty %v later", m.name, long.Round(time.Millisecond))
	s.crashed = time.Now()
	m.crash()
	s.later(long, m.start)
	return true
}

// emptyDisk takes a voter away with its disk, where the other two vote.
func (s *script) emptyDisk(at sight) bool {
	m := s.machine(at)
	if up, _ := m.life(); !up || !s.w.votes(m.name) || s.voters() < 3 || !s.losable(m) {
		return false
	}
	long := s.between(time.Second, 40*time.Second)
	s.uncalm()
	s.note("node %s is lost with its disk, and comes back empty %v later", m.name, long.Round(time.Millisecond))
	s.crashed = time.Now()
	m.crash()
	s.w.raft.empty(m.name)
	s.later(long, m.start)
	return true
}

// isolate keeps a node from hearing anybody.
func (s *script) isolate(at sight) bool {
	n := s.machine(at).name
	if !s.w.net.reaches(n) || s.w.votes(n) && s.voters() < 3 {
		return false
	}
	long := s.between(100*time.Millisecond, 30*time.Second)
	s.uncalm()
	s.note("%s hears nobody for %v", n, long.Round(time.Millisecond))
	for _, other := range s.w.names {
		if other != n {
			s.w.net.sever(n, other, false)
		}
	}
	s.later(long, func() {
		for _, other := range s.w.names {
			if other != n {
				s.w.net.join(n, other)
			}
		}
	})
	return true
}

func (s *script) sever(at sight) bool {
	a, b, ok := s.pair(at)
	if !ok {
		return false
	}
	long := s.between(100*time.Millisecond, 8*time.Second)
	s.uncalm()
	s.note("%s and %s do not hear each other for %v", a, b, long.Round(time.Millisecond))
	s.w.net.sever(a, b, false)
	s.later(long, func() { s.w.net.join(a, b) })
	return true
}

// mute keeps one node from hearing another, which hears it.
func (s *script) mute(at sight) bool {
	a, b, ok := s.pair(at)
	if !ok {
		return false
	}
	long := s.between(100*time.Millisecond, 12*time.Second)
	s.uncalm()
	s.note("%s does not hear %s for %v", b, a, long.Round(time.Millisecond))
	s.w.net.sever(a, b, true)
	s.later(long, func() { s.w.net.join(a, b) })
	return true
}

// hangUp breaks all connections between two nodes: what was on its way stops half.
func (s *script) hangUp(at sight) bool {
	a, b, ok := s.pair(at)
	if !ok {
		return false
	}
	s.uncalm()
	s.note("what %s and %s have open breaks", a, b)
	s.w.net.hangUp(a, b)
	return true
}

func (s *script) depose(sight) bool {
	s.note("the leader falls")
	s.w.raft.depose()
	return true
}

// deposeAll has one leader after the other fall, some seconds after it came, while the job waits for something: as on a machine that is too busy for
// its leader. How long something has lasted is no leader's, so this gives nobody more time.
func (s *script) deposeAll(sight) bool {
	every, times := s.between(3*time.Second, 9*time.Second), 3+s.rng.IntN(6)
	s.note("a leader falls each %v while something is waited for, %d times", every.Round(time.Millisecond), times)
	var fall func()
	fall = func() {
		if times--; times < 0 {
			return
		}
		if j := s.w.now(); j == nil || j.Phase != replica.Open || time.Since(s.watcher.since) > 2*time.Second {
			s.w.tracef("FAULT: another leader falls")
			s.w.raft.depose()
		}
		s.quietly(every, fall)
	}
	s.quietly(every, fall)
	return true
}

// flip changes a bit of one copy of what is committed, where another copy is left. From then on no node is lost: which copies are good the
// log does not say.
func (s *script) flip(sight) bool {
	if s.flipped || !s.crashed.IsZero() {
		return false
	}
	for _, m := range s.w.machines {
		if m.fragile() {
			return false
		}
	}
	j := s.w.now()
	if j == nil || len(j.Parts) == 0 || j.Committed.IsZero() {
		return false
	}
	p := j.Parts[s.rng.IntN(len(j.Parts))]
	if len(p.Holders) < 2 {
		return false
	}
	m := s.w.machines[p.Holders[s.rng.IntN(len(p.Holders))].Node]
	done, err := m.keeper.flip(s.w.content(p.Part, j.Position.Step))
	if err != nil {
		s.w.t.Error(err)
	}
	if !done {
		return false
	}
	s.flipped = true
	s.uncalm()
	s.note("a bit of %v of step %d flips in the memory of %s", p.Part, j.Position.Step, m.name)
	return true
}

// starve has a node lack memory for anything new for a while. Its daemon is started again for that, as memory is measured by the machine.
func (s *script) starve(at sight) bool {
	m := s.machine(at)
	if m.running() == nil || s.hurt[m] || m.fragile() && !s.losable(m) {
		return false
	}
	long := s.between(time.Second, 30*time.Second)
	s.uncalm()
	s.note("node %s has no memory for anything new, for %v", m.name, long.Round(time.Millisecond))
	s.hurt[m] = true
	m.short.Store(true)
	m.kill()
	m.serve()
	s.later(long, func() {
		delete(s.hurt, m)
		m.short.Store(false)
		if m.running() != nil && (!m.fragile() || s.losable(m)) {
			m.kill()
			m.serve()
		}
	})
	return true
}

// drain has an operator move a node's ranks elsewhere, and clear the node later.
func (s *script) drain(at sight) bool {
	m := s.machine(at)
	leads, _ := s.w.raft.leads()
	if leads == "" || s.hurt[m] || m.running() == nil {
		return false
	}
	d := s.w.machines[leads].running()
	if d == nil {
		return false
	}
	order := func(verb control.Verb) {
		d := s.w.leading()
		if d == nil {
			return
		}
		d.work.Go(func() {
			ctx, cancel := context.WithTimeout(d.ctx, 30*time.Second)
			defer cancel()
			reply, _ := d.leader.BesideHere(ctx, control.Order{Verb: verb, Node: m.name, Why: "sim"})
			s.w.tracef("operator: %v of %s: %s%s", verb, m.name, reply.Text, reply.Refused)
		})
	}
	long := s.between(time.Second, 40*time.Second)
	s.uncalm()
	s.note("node %s is drained, and cleared %v later", m.name, long.Round(time.Millisecond))
	s.hurt[m] = true
	order(control.Drain)
	var clear func()
	clear = func() {
		if s.w.leading() == nil {
			s.later(time.Second, clear)
			return
		}
		delete(s.hurt, m)
		order(control.Clear)
	}
	s.later(long, clear)
	return true
}
