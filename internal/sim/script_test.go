package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// script is what goes wrong in an episode: faults, each aimed at a moment, one after another.
type script struct {
	w           *world
	rng         *rand.Rand
	aims        []aim // still to come; the first one waits for its moment
	daemonsOnly bool
	watcher     watcher
	tasks       []task
	last, ended time.Time    // the last fault or mending, the end of the job
	reached     replica.Step // committed when a fault happened last

	crashed time.Time         // when a node's memory was lost
	flipped bool              // a copy that the log counts is bad
	hurt    map[*machine]bool // that are short of memory, or drained
}

// aim is a fault that is to come at the nth sight of a moment, and so long after it.
type aim struct {
	kind   kind
	moment moment
	nth    int
	after  time.Duration
	until  time.Time // given up then; zero: never
	at     sight     // once it was seen
	due    time.Time // zero: not yet seen
}

// task is something that mends a fault later.
type task struct {
	at    time.Time
	fn    func()
	quiet bool // it gives nobody more time
}

// patience is how long a fault waits for its moment.
const patience = 10 * time.Second

func newScript(w *world) *script {
	s := &script{w: w, rng: rand.New(rand.NewPCG(w.seed, 3)), hurt: map[*machine]bool{}}
	s.daemonsOnly = s.rng.IntN(8) == 0
	s.watcher = watcher{s: s, since: time.Now()}
	for range 1 + s.rng.IntN(5) {
		a := s.draw()
		if n := len(s.aims); a.moment.follows() && (n == 0 || !s.aims[n-1].moment.follows() || a.moment == splitting || s.rng.IntN(2) == 0) {
			s.aims = append(s.aims, s.before(a.moment))
		}
		s.aims = append(s.aims, a)
	}
	// A job begins once, and ends once.
	order := map[moment]int{opening: -1, leaving: 1}
	slices.SortStableFunc(s.aims, func(a, b aim) int { return order[a.moment] - order[b.moment] })
	return s
}

// draw aims a fault.
func (s *script) draw() aim {
	kinds := faults
	if s.daemonsOnly {
		kinds = []kind{daemonKilled, daemonKilled, leaderFalls, daemonsKilled}
	}
	for {
		a := aim{kind: pick(s.rng, kinds...), moment: pick(s.rng, aimed...)}
		if s.w.has(splitting) && s.rng.IntN(6) == 0 {
			a.moment = splitting
		}
		leanAim(s.rng, &a, s.daemonsOnly)
		if a.moment == splitting && !s.daemonsOnly && s.rng.IntN(2) == 0 {
			a.kind = rankKilled // what is in the slots matters once the epoch is closed
		}
		if !a.kind.fits(a.moment) || !s.w.has(a.moment) && s.rng.IntN(4) > 0 {
			continue
		}
		switch {
		case a.moment.often():
			a.nth = s.rng.IntN(12)
		case a.moment == living || a.moment == fetching || a.moment == loaded || !a.moment.follows(): // each rank has such, or each part
			a.nth = s.rng.IntN(3)
		}
		switch s.rng.IntN(4) {
		case 0:
			a.after = s.between(0, 20*time.Millisecond)
		case 1:
			a.after = s.between(0, 300*time.Millisecond)
		}
		if a.moment == splitting && s.rng.IntN(2) == 0 {
			a.after = s.between(0, 400*time.Millisecond) // before there is another leader, and once a slot is free again
		}
		if a.moment == anytime {
			a.nth, a.after = 0, s.between(0, 3*time.Second)
		}
		report.drew(a)
		return a
	}
}

// before is a fault that brings a moment about: one of a recovery; or one that keeps nodes from hearing of another candidate, once some
// ranks have passed this one.
func (s *script) before(m moment) aim {
	a := aim{kind: pick(s.rng, rankKilled, rankKilled, rankRaises, nodeLost), moment: pick(s.rng, anytime, anytime, pinning, capturing, pushing), nth: s.rng.IntN(6)}
	switch {
	case m == adopting:
		a.kind = daemonKilled
	case m == splitting && s.daemonsOnly:
		a.kind, a.moment = pick(s.rng, daemonKilled, leaderFalls), pick(s.rng, pinning, splitting)
	case m == splitting:
		a.kind, a.moment = pick(s.rng, leaderFalls, leaderFalls, leaderFalls, leaderFalls, daemonKilled, pairCut, oneWayCut), pick(s.rng, pinning, splitting, splitting, splitting)
	case s.daemonsOnly:
		a.kind = daemonsKilled
	}
	leanBefore(s.rng, &a, m)
	if a.moment == anytime {
		a.nth, a.after = 0, s.between(0, 3*time.Second)
	}
	report.drew(a)
	return a
}

func (s *script) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.rng.Int64N(int64(most-least)))
}

// run plays the job until its end.
func (s *script) run() {
	over := time.Now().Add(*most)
	s.arm()
	for tick := time.Now(); ; {
		now := time.Now()
		s.mend(now)
		s.aim(now)
		if len(s.aims) == 0 || s.aims[0].moment == leaving {
			s.finish()
		}
		if !tick.After(now) {
			tick = now.Add(watchEvery)
			s.watcher.look()
		}
		wake := time.NewTimer(s.wake(tick).Sub(now))
		select {
		case <-s.w.done:
			s.ended = time.Now()
			time.Sleep(10 * time.Second) // ranks take their time to hear of it
			s.judge()
			return
		case <-s.w.broken:
			return
		case at := <-s.w.sights:
			s.sight(at)
		case <-wake.C:
		}
		wake.Stop()
		if time.Now().After(over) {
			s.w.failf("P6: the job has not ended after %v: %d faults, committed step %d", *most, len(s.w.faults), s.w.committed)
			return
		}
	}
}

// finish has the job come to its end, once it has committed something since the last fault.
func (s *script) finish() {
	if j := s.w.now(); j != nil && j.Phase == replica.Open && j.Position.Step > s.reached {
		s.w.finish()
	}
}

// wake is when something is next to be done.
func (s *script) wake(tick time.Time) time.Time {
	for _, t := range s.tasks {
		tick = earlier(tick, t.at)
	}
	if len(s.aims) > 0 {
		tick = earlier(earlier(tick, s.aims[0].due), s.aims[0].until)
	}
	return tick
}

func earlier(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}

// arm has the next fault wait for its moment.
func (s *script) arm() {
	if len(s.aims) == 0 {
		s.w.wanted.Store(uint32(anytime))
		return
	}
	a := &s.aims[0]
	if a.moment == anytime {
		a.due = time.Now().Add(a.after)
		s.w.wanted.Store(uint32(anytime))
		return
	}
	if a.moment != leaving {
		a.until = time.Now().Add(patience)
	}
	s.w.wanted.Store(uint32(a.moment))
	if j := s.w.now(); j != nil { // it may last already
		s.w.mu.Lock()
		s.w.sees(nil, j)
		s.w.mu.Unlock()
	}
}

// sight is a moment that the first aim may have waited for.
func (s *script) sight(at sight) {
	if len(s.aims) == 0 {
		return
	}
	a := &s.aims[0]
	if at.moment != a.moment || !a.due.IsZero() {
		return
	}
	if a.nth > 0 {
		a.nth--
		return
	}
	a.at, a.due = at, time.Now().Add(a.after)
}

// aim has the first fault happen once its time has come.
func (s *script) aim(now time.Time) {
	if len(s.aims) == 0 {
		return
	}
	a := &s.aims[0]
	switch {
	case !a.due.IsZero() && !a.due.After(now):
		if a.at.on != nil && !a.at.on() && (a.until.IsZero() || now.Before(a.until)) {
			a.due = time.Time{} // it was over before: the next one, then
			return
		}
		if a.at.on == nil || a.at.on() {
			if s.strike(*a) {
				report.struck(*a)
				s.last = time.Now()
				if j := s.w.now(); j != nil {
					s.reached = j.Position.Step
				}
				s.watcher.disturbed()
			}
		}
	case a.until.IsZero() || now.Before(a.until):
		return
	}
	s.aims = s.aims[1:]
	s.arm()
}

// mend does the tasks whose time has come.
func (s *script) mend(now time.Time) {
	for i := 0; i < len(s.tasks); {
		if s.tasks[i].at.After(now) {
			i++
			continue
		}
		t := s.tasks[i]
		s.tasks = slices.Delete(s.tasks, i, i+1)
		t.fn()
		if !t.quiet {
			s.last = now
			s.watcher.disturbed()
		}
	}
}

func (s *script) later(d time.Duration, fn func()) {
	s.tasks = append(s.tasks, task{at: time.Now().Add(d), fn: fn})
}

// quietly is later for what is to give nobody more time.
func (s *script) quietly(d time.Duration, fn func()) {
	s.tasks = append(s.tasks, task{at: time.Now().Add(d), fn: fn, quiet: true})
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
	} else if w.committed != w.last && s.ended.Sub(s.last) > lastGrace {
		w.failLocked("P6: the job ends with step %d of %d committed, and nothing failed in its last %v", w.committed, w.last, lastGrace)
	}
}

func (s *script) note(format string, args ...any) {
	text := fmt.Sprintf("%v ", time.Since(s.w.began).Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	if len(s.aims) > 0 {
		text += fmt.Sprintf(" (%v)", s.aims[0].moment)
	}
	s.w.faults = append(s.w.faults, text)
	s.w.tracef("FAULT: %s", text)
}

func (s *script) uncalm() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.calm = false
}

// voters are those whose daemons run.
func (s *script) voters() (n int) {
	for _, v := range s.w.raft.voters {
		if s.w.machines[v].running() != nil && !s.w.raft.forgot(v) {
			n++
		}
	}
	return n
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

// losable tells whether the job's promise covers the loss of a node's memory.
func (s *script) losable(m *machine) bool {
	return !s.flipped && time.Since(s.crashed) >= 2*time.Second && s.spared(m.name)
}
