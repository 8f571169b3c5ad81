package chaos

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/replica"
)

// An aim is a moment that slot words show, and who is killed in it.
type aim struct {
	mirrors bool // the place is a mirror's
	rank    bool // the rank is killed; else the daemon of the place's node
	restore bool // after a node was lost: the place is filled from another node
	opening bool // before any rank has made a step
}

// aims are the kinds of faults that hit while a group's part is being copied.
var aims = map[string]aim{
	pushDaemon:    {mirrors: true},
	pushRank:      {mirrors: true, rank: true},
	captureDaemon: {},
	captureRank:   {rank: true},
	restoreDaemon: {restore: true},
	restoreRank:   {restore: true, rank: true},
	openingRank:   {mirrors: true, rank: true, opening: true},
}

const (
	aimPatience    = 10 * time.Second // for a copy that occurs with each step
	aimHalf        = aimPatience / 2  // from then on a mirror will do that has the group's part alone
	aimLook        = 100 * time.Microsecond
	aimFind        = 50 * time.Millisecond // between looks for arenas that were made meanwhile
	restorePending = 30 * time.Second      // from a node's loss to the transfer of its ranks' state
)

// wants tells whether a place is copied to in the moment that is aimed at.
func (a aim) wants(s spot, waited time.Duration) bool {
	switch {
	case s.word.State() != replica.SlotCopying:
		return false
	case a.restore:
		return true
	case a.mirrors != s.mirror:
		return false
	}
	return !s.mirror || s.both || a.opening || waited > aimHalf // a job that opens has no private parts yet
}

// await looks until a place is in the moment that is aimed at, and hit is called at once with it; false: there was none.
func (r *runner) awaitSpot(ctx context.Context, a aim, patience time.Duration, ready func() bool, hit func(spot)) (found spot, ok bool, err error) {
	all := r.allWords()
	defer closeWords(all)
	began, sought := time.Now(), time.Now()
	for time.Since(began) < patience {
		if err := r.pause(ctx, aimLook); err != nil {
			return found, false, err
		}
		if time.Since(sought) > aimFind {
			r.findWords(all)
			sought = time.Now()
		}
		if !ready() {
			continue
		}
		for _, w := range all {
			for _, s := range w.spots(false) {
				if a.wants(s, time.Since(began)) {
					hit(s)
					return s, s.now() == s.word, nil
				}
			}
		}
	}
	return found, false, nil
}

// beginAimed kills a rank or a daemon while the slot word of a place says that a part is on its way into it.
func (r *runner) beginAimed(ctx context.Context, f Fault) (act, error) {
	a := aims[f.Kind]
	ready, patience, end := func() bool { return !a.opening || !r.opened() }, aimPatience, func() error { return nil }
	text := f.Kind
	if a.restore {
		i, lost := r.loseRanks(f)
		text += fmt.Sprintf(": node %s lost", lost.Name)
		epoch, _, _ := r.now()
		if err := r.lose(lost); err != nil {
			return act{}, err
		}
		end = func() error { return r.revive(i) }
		ready, patience = func() bool { return r.planned(epoch) }, restorePending
	}
	var restart func() error
	victim := 0
	began := time.Now()
	s, hit, err := r.awaitSpot(ctx, a, patience, ready, func(s spot) {
		n := r.cluster.Node(s.node)
		if a.rank {
			victim = s.rank
			if a.opening { // others' parts are on their way too
				victim = (s.rank + int(f.Pick)) % r.lay.World
			}
			_, pid := r.rankOf(victim)
			r.kill(pid, f.Kind)
			return
		}
		n.Daemon.Kill()
		restart = func() error { return r.restart(n) }
	})
	switch {
	case err != nil:
		return act{text: text, end: end}, err
	case s.arena == nil:
		text += fmt.Sprintf(": MISSED, no such copy in %.0f s", time.Since(began).Seconds())
	default:
		who := fmt.Sprintf("daemon of %s killed, away %.1f s", s.node, f.For.Seconds())
		if a.rank {
			who = fmt.Sprintf("rank %d killed", victim)
		}
		text += fmt.Sprintf(": %s at %v", who, s)
		if hit {
			r.hits[f.Kind]++
		} else {
			text += ", which was over before it died"
		}
	}
	r.rec.note("FAULT     " + text)
	return act{text, func() error {
		if restart != nil {
			if err := restart(); err != nil {
				return err
			}
		}
		return end()
	}}, nil
}

// planned tells whether a plan after this epoch is being carried out.
func (r *runner) planned(after uint64) (yes bool) {
	r.journal.View(func() {
		plan, open := after, after
		for _, e := range r.journal.Log {
			switch e.Event {
			case "planned":
				plan = max(plan, e.Epoch)
			case "resumed":
				open = max(open, e.Epoch)
			}
		}
		yes = plan > open
	})
	return yes
}

// opened tells whether the job that runs has been resumed once: its ranks make steps from then on.
func (r *runner) opened() (yes bool) {
	r.journal.View(func() {
		yes = slices.ContainsFunc(r.journal.Log, func(e cluster.LogEvent) bool { return e.Event == "resumed" })
	})
	return yes
}

// loseRanks is a node that runs a rank, with its index.
func (r *runner) loseRanks(f Fault) (int, *cluster.Node) {
	name, _ := r.rankOf(int(f.Pick) % r.lay.World)
	for i, n := range r.cluster.Nodes {
		if n.Name == name {
			return i, n
		}
	}
	return 0, r.cluster.Nodes[0]
}

// atOpening kills a rank while the job's first generation is on its way to a mirror: no rank has made a step yet.
func (r *runner) atOpening(ctx context.Context) error {
	f, ok := Opening(r.opt.Seed, r.lay, r.kinds, r.jobs)
	if !ok {
		return nil
	}
	r.faults[f.Kind]++
	a, err := r.beginAimed(ctx, f)
	if err != nil {
		return err
	}
	r.kills += r.judge.takeKills()
	r.rec.say("%s, while job %s opens", a.text, r.job.Name)
	return nil
}

// keeper kills the keeper of a node beside its daemon, whose supervisor starts it again a while later.
func (r *runner) beginKeeper(n *cluster.Node, f Fault) act {
	n.Keeper.Kill()
	return act{fmt.Sprintf("%s: keeper of %s killed, away %.1f s", f.Kind, n.Name, f.For.Seconds()), func() error {
		if n.Dead() || n.Keeper.Running() {
			return nil
		}
		return r.cluster.StartKeeper(n)
	}}
}

// beginKeeperLater is what comes of a keeper's death: its supervisor starts it again, later an operator restarts the daemon beside it, later
// any rank dies.
func (r *runner) beginKeeperLater(ctx context.Context, f Fault) (act, error) {
	rank := int(f.Pick) % r.lay.World
	node, _ := r.rankOf(rank)
	n := r.cluster.Node(node)
	a := r.beginKeeper(n, f)
	r.rec.note("FAULT     " + a.text)
	if err := r.pause(ctx, f.For); err != nil {
		return a, err
	}
	if err := a.end(); err != nil {
		return a, err
	}
	if err := r.pause(ctx, f.Lead); err != nil {
		return a, err
	}
	n.Daemon.Signal(syscall.SIGTERM)
	select {
	case <-n.Daemon.Gone:
	case <-ctx.Done():
		return a, context.Cause(ctx)
	}
	if err := r.restart(n); err != nil {
		return a, err
	}
	_, step, _ := r.now()
	if err := r.whole(ctx, step, f.Kind); err != nil {
		return a, err
	}
	victim := int(f.Other) % r.lay.World
	_, pid := r.rankOf(victim)
	text := a.text + fmt.Sprintf(", then its daemon restarted, then rank %d (pid %d) killed", victim, pid)
	r.rec.note("FAULT     " + text)
	r.kill(pid, f.Kind)
	return act{text: text}, nil
}
