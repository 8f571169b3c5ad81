package launchers

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// A launcher that was told to end may once the step is committed that its ranks are in. Where other nodes have ranks too it waits for one more: a
// launcher there may have been told at the same time, and its rank be one step ahead.
func TestLaunchersLeaveWithAStepCommitted(t *testing.T) {
	for what, c := range map[string]struct {
		phase replica.Phase
		at    replica.Step
		ranks []replica.Rank
		wants replica.Step
	}{
		"between two steps":              {replica.Idle, 5, []replica.Rank{0, 1}, 6},
		"in a step's update":             {replica.Updating, 6, []replica.Rank{0, 1}, 6},
		"others on other nodes":          {replica.Idle, 5, []replica.Rank{0}, 7},
		"others, and in a step's update": {replica.Updating, 6, []replica.Rank{0}, 7},
		"none of its ranks trains":       {replica.Idle, 5, nil, 5},
	} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		rank := lj.attach(0)
		rank.Trains, rank.Word = true, replica.PackWord(3, c.at, c.phase)
		peer, end := d.session()
		l := &launcher{peer: peer, hello: wire.RunHello{Job: "job", World: 2, Capacity: 2}, starts: starts{}}
		for _, r := range c.ranks {
			l.starts[r] = &start{running: true}
		}
		d.all[peer.ID()] = l
		d.Handle(session.RunLeaving{Peer: peer}, time.Now())
		for step := replica.Step(5); step < c.wants; step++ {
			lj.job = fixture.Changed(lj.job, func(j *replica.Job) { j.Position.Step = step })
			if d.LetGo(); !l.leaving {
				t.Errorf("%s: it may end with step %d, want %d", what, step, c.wants)
			}
		}
		lj.job = fixture.Changed(lj.job, func(j *replica.Job) { j.Position.Step = c.wants })
		d.LetGo()
		if l.leaving {
			t.Errorf("%s: step %d is committed, and it may not end", what, c.wants)
			continue
		}
		if h, _ := end.Reads(); h.Type != wire.MRunLeave {
			t.Errorf("%s: it is told %d", what, h.Type)
		}
	}
}
