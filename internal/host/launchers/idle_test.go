package launchers

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// A launcher that is asked for no process says what it waits for.
func TestWhyIdle(t *testing.T) {
	lost := fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 1, Incarnation: 5}}
	})
	for what, c := range map[string]struct {
		job      *replica.Job
		capacity int
		spare    bool
		want     string
	}{
		"runs":       {fixture.Job(), 2, false, `job "job" runs already with all its ranks, on n1 (1), n2 (1). This launcher's 2 processes are spare and start when a rank is lost`},
		"one spare":  {fixture.Job(), 1, true, "This launcher's process is spare and starts when a rank is lost"},
		"lost":       {lost, 2, false, `job "job" waits for processes of 1 of its 2 ranks (rank 1 first): other launchers start them, or this one is asked next`},
		"lost spare": {lost, 2, true, "this launcher is a spare, and is asked once no other one takes them"},
		"opening": {fixture.Changed(fixture.Job(), func(j *replica.Job) {
			j.Phase, j.Ranks = replica.Opening, make([]replica.Claimed, 2)
		}), 2, false, "waits for processes of 2 of its 2 ranks (rank 0 first)"},
	} {
		if text := whyIdle(c.job, c.capacity, c.spare); !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %q", what, text, c.want)
		}
	}
}

// It says so once, soon, and not where it was asked.
func TestIdleLauncherIsTold(t *testing.T) {
	for what, c := range map[string]struct {
		asked bool
		after time.Duration
		want  bool
	}{"soon": {false, idleAfter, true}, "not at once": {false, idleAfter - 1, false}, "asked": {true, idleAfter, false}} {
		d := newRig(t)
		job := fixture.Job()
		lj := d.put(job)
		peer, end := d.session()
		d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: 2, Capacity: 2}}, time.Now())
		if h, _ := end.Reads(); h.Type != wire.MRunOK {
			t.Fatalf("message %d", h.Type)
		}
		l := d.all[peer.ID()]
		if c.asked {
			l.start(lj.job, 1, time.Now())
			end.Reads()
		}
		at := l.idle.Add(c.after)
		l.idles(job, at)
		l.idles(job, at)
		d.Of(lj).Note("that is all")
		text := end.note()
		if told := strings.HasPrefix(text, `job "job" runs already`); told != c.want {
			t.Errorf("%s: it is told %q", what, text)
		} else if told && end.note() != "that is all" {
			t.Errorf("%s: it is told twice", what)
		}
	}
}

// A launcher that starts no processes waits for none.
func TestLauncherOfAnAgentIsNotIdle(t *testing.T) {
	d := newRig(t)
	peer, _ := d.session()
	l := &launcher{peer: peer, hello: wire.RunHello{Job: "job", Spare: true}, accepted: true, idle: time.Now().Add(-time.Hour), starts: starts{}}
	l.idles(fixture.Job(), time.Now())
	if l.idle.IsZero() {
		t.Error("it is notified that it waits")
	}
}
