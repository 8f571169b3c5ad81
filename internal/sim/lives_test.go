package sim

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/ranklife"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/replica"
)

// TestLives plays the table of internal/ranklife: a rank of the simulation sends what one on libreplicad does. Else its episodes would be
// about other ranks than those that train.
func TestLives(t *testing.T) {
	text, err := os.ReadFile("../ranklife/testdata/lives.txt")
	if err != nil {
		t.Fatal(err)
	}
	list, err := ranklife.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if why, is := s.Without["sim"]; is {
			t.Logf("%s: %s", s.Name, why) // the table has the reason: no test is skipped that could run
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			dir, err := os.MkdirTemp(quick(), "sim")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			bubble.Test(t, func(t *testing.T) { playLife(t, s, dir) })
		})
	}
}

func playLife(t *testing.T, s ranklife.Scenario, dir string) {
	ctx, cancel := context.WithCancel(t.Context())
	w := lone(t, ctx, dir)
	if s.Does("leave") {
		w.last = 1
	}
	n := &scripted{m: w.machines[w.names[0]]}
	n.Return()
	l := &launcher{m: n.m, begun: map[replica.Rank]uint64{}, ends: make(chan *process, 1)}
	l.ctx, l.cancel = context.WithCancel(ctx)
	p := w.startRank(l, 0)
	exited := make(chan struct{})
	go func() {
		<-p.ended
		n.d.post(session.Exited{PID: p.pid, StartTime: p.start})
		close(exited)
	}()
	ranklife.Play(t, s, n, itself{p})
	p.end(137)
	n.Leave()
	cancel()
	l.runs.Wait()
	<-exited
}

// lone is a world of one rank.
func lone(t *testing.T, ctx context.Context, dir string) *world {
	for seed := uint64(1); ; seed++ {
		w := newWorld(t, ctx, seed, dir)
		if w.frozen || w.from != nil {
			continue
		}
		w.world, w.groups, w.slots, w.cadence, w.warm, w.takes, w.pass = 1, []replica.GroupID{0}, 4, 0, true, 0, 100*time.Millisecond
		w.job = replica.JobID{0x0b}
		w.net = newNetwork(w.names, w.pace())
		return w
	}
}

// itself is a rank that goes by itself: the table ends its process, and bids it nothing else.
type itself struct{ *process }

func (r itself) Do(command string) error {
	if command == "end" || command == "die" {
		r.end(137)
	}
	return nil
}

func (itself) Answers() <-chan string { return nil }

// scripted is a machine whose daemon the table plays.
type scripted struct {
	m *machine
	d *daemon
}

func (n *scripted) Events() <-chan session.Event { return n.d.events }
func (n *scripted) Watch(session.Peer) error     { return nil }
func (n *scripted) Idle()                        { synctest.Wait() }

func (n *scripted) Leave() {
	n.d.cancel()
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.m.daemon = nil
}

func (n *scripted) Return() {
	n.d = &daemon{m: n.m, events: make(chan session.Event, 256), dice: n.m.w.dice("daemon of "+string(n.m.name), 1)}
	n.d.ctx, n.d.cancel = context.WithCancel(n.m.w.ctx)
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.m.daemon = n.d
}
