package host

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/account"
	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// door brings what a test has sessions say.
type door chan session.Event

func (d door) Events() <-chan session.Event { return d }
func (d door) Watch(int, uint64) error      { return nil }

// aKeeper is there, and is asked for nothing.
type aKeeper struct{ Keeper }

func (aKeeper) Done() <-chan struct{} { return nil }

// The tick alone begins a spell: in a host with nothing else to do what waited for the next one waited for two.
func TestWhatWaitsForThePaceGoesWithTheNextSpell(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		defer near.Close()
		sessions, log := make(door), &fixture.Lines{}
		h := New(Config{Daemon: &config.Config{Node: "n1", StateDir: t.TempDir(), Timing: config.Default().Timing, PerUser: config.PerUser{Requests: 1}},
			Self: replica.Node{Name: "n1"}, Journal: journaltest.New(t, log), Sessions: sessions, Keeper: aKeeper{}})
		h.informed, h.link = true, control.NewLink(near, control.ToLeader)
		d := &rig{t: t, Host: h}
		go h.Run(t.Context())
		time.Sleep(idleTick) // a spell begins
		const launchers = 5
		for i := range launchers {
			sessions <- session.RunHello{Peer: &mute{id: uint64(i), uid: alice}, Header: wire.RankHeader{Request: 1}, RunHello: wire.RunHello{Job: fmt.Sprint("job-", i), World: 2, Capacity: 1}}
		}
		for spell := range launchers {
			synctest.Wait()
			if asked := fixture.Only[control.CreateRequest](d.says()); len(asked) != 1 {
				t.Errorf("spell %d: the leader is asked for %d jobs, want 1", spell, len(asked))
			}
			time.Sleep(account.Spell)
		}
	})
}

// A daemon without jobs and processes looks about once a second, unless a room has named a time, and as often as ever once a job is there.
func TestRestsWithoutJobs(t *testing.T) {
	d := newRig(t)
	ticks := func(what string, least, most time.Duration) {
		t.Helper()
		d.tick()
		if next := d.tick(); next < least || next > most {
			t.Errorf("%s the next tick is in %v, want %v to %v", what, next, least, most)
		}
	}
	ticks("without jobs", restTick/2, restTick)
	lj := d.put(fixture.Job())
	ticks("with one", 0, idleTick)
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Phase = replica.Ended })
	d.link = nil // that there is no leader has its time
	ticks("without a leader", 0, idleTick)
}
