//go:build cgo

package session_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// miniDaemon is what a daemon is to one rank: a socket, a keeper and an arena. It runs in the test's goroutine, in until.
type miniDaemon struct {
	t      *testing.T
	path   string
	keeper *shm.Keeper
	server *session.Server
	stop   context.CancelFunc
	done   sync.WaitGroup

	arena  *shm.Arena
	peer   session.Peer
	inc    replica.Incarnation
	epoch  replica.Epoch // of the orders
	order  *wire.Order   // for the next STOPPED
	loaded replica.Digest
}

// start begins a daemon's life: what the keeper holds is adopted before anybody is let in.
func (d *miniDaemon) start(keeperSocket string) {
	d.t.Helper()
	var err error
	if d.keeper, err = shm.DialKeeper(d.t.Context(), keeperSocket); err != nil {
		d.t.Fatal(err)
	}
	files, err := d.keeper.All()
	if err != nil {
		d.t.Fatal(err)
	}
	if f := files["job/2"]; f != nil {
		if d.arena, err = shm.Adopt(f); err != nil {
			d.t.Fatal(err)
		}
	}
	if d.server, err = session.Listen(session.Config{Path: d.path}); err != nil {
		d.t.Fatal(err)
	}
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	d.done.Go(func() {
		if err := d.server.Run(ctx); err != nil {
			d.t.Error(err)
		}
	})
}

// end ends a daemon's life; the arena stays with the keeper and the rank.
func (d *miniDaemon) end() {
	d.stop()
	d.done.Wait()
	d.keeper.Close()
	if d.arena != nil {
		_ = d.arena.Close()
		d.arena = nil
	}
}

// until lives on until an event comes that matches.
func until[E session.Event](d *miniDaemon, match func(E) bool) E {
	d.t.Helper()
	late := time.After(patience)
	for {
		select {
		case ev := <-d.server.Events():
			d.react(ev)
			if e, ok := ev.(E); ok && match(e) {
				return e
			}
		case <-late:
			var e E
			d.t.Fatalf("no such %T came", e)
			return e
		}
	}
}

func any1[E session.Event](E) bool { return true }

func (d *miniDaemon) react(ev session.Event) {
	switch ev := ev.(type) {
	case session.Hello:
		d.peer = ev.Peer
		if err := d.server.Watch(ev.Peer.PID(), ev.Peer.StartTime()); err != nil {
			d.t.Error(err)
		}
		if ev.File != nil {
			d.reattach(ev)
			return
		}
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MWelcome, Request: ev.Header.Request},
			wire.Welcome{ABI: wire.RankABI, Rank: ev.Rank, Cluster: replica.ClusterID{1}, Job: replica.JobID{2}, Era: 1, ChunkBytes: 4096}.Append(nil))
	case session.Attach:
		d.attach(ev)
	case session.Stopped:
		d.send(wire.MOrder, d.order.Append(nil))
	case session.Loaded:
		d.loaded = ev.ReplicatedRoot
		d.send(wire.MOrder, wire.Order{Action: wire.OrderGo}.Append(nil))
	case session.Pause:
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MPaused, Request: ev.Header.Request}, nil)
	case session.Leave:
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MBye, Request: ev.Header.Request}, nil)
	}
}

func (d *miniDaemon) send(typ uint16, body []byte) {
	if err := d.peer.Send(wire.RankHeader{Type: typ, Epoch: d.epoch, Incarnation: d.inc}, body); err != nil {
		d.t.Error(err)
	}
}

func (d *miniDaemon) attached() []byte {
	s := d.arena.Spec()
	return wire.Attached{ArenaBytes: d.arena.Header().ArenaBytes, Incarnation: d.inc, Slots: uint32(s.Slots), Ring: uint32(s.Ring), Fence: d.arena.Fence(), Job: s.Job}.Append(nil)
}

// attach hands out the arena: a new one, or that of a rank whose process has exited.
func (d *miniDaemon) attach(ev session.Attach) {
	g, err := replica.NewGeometry(ev.Regions)
	if err == nil && d.arena == nil {
		if d.arena, err = shm.Create(shm.Spec{Cluster: replica.ClusterID{1}, Era: 1, Job: replica.JobID{2}, Rank: 2, Geometry: g, ChunkBytes: 4096}); err == nil {
			err = d.keeper.Put("job/2", d.arena.File())
		}
	}
	if err != nil {
		d.t.Error(err)
		ev.Peer.Refuse(ev.Header.Request, wire.CodeRefused, err.Error())
		return
	}
	d.inc++
	d.arena.SetOwner(d.inc, uint64(ev.Peer.PID()), ev.Peer.StartTime())
	if err := ev.Peer.SendFile(wire.RankHeader{Type: wire.MAttached, Request: ev.Header.Request}, d.attached(), d.arena.File()); err != nil {
		d.t.Error(err)
	}
}

// reattach compares what a rank offers with what the keeper had.
func (d *miniDaemon) reattach(ev session.Hello) {
	offered, err := shm.Adopt(ev.File)
	if err != nil {
		d.t.Error(err)
		_ = ev.File.Close()
		return
	}
	defer offered.Close()
	if inc, pid, start := offered.Owner(); inc != d.inc || pid != uint64(ev.Peer.PID()) || start != ev.Peer.StartTime() || offered.Spec().Job != d.arena.Spec().Job {
		d.t.Errorf("a rank offers the arena of incarnation %d, pid %d", inc, pid)
	}
	_ = ev.Peer.Send(wire.RankHeader{Type: wire.MAttached, Request: ev.Header.Request}, d.attached())
}

// load is the order to load generation g, wherever it lies sealed.
func (d *miniDaemon) load(epoch replica.Epoch, g replica.Generation) shm.Place {
	d.t.Helper()
	d.epoch, d.order = epoch, &wire.Order{Action: wire.OrderLoad, Source: replica.OwnRAM, Step: g.Step, Generation: g}
	found, slot := 0, shm.Place{}
	for _, p := range d.arena.Places() {
		info, err := d.arena.Sealed(p)
		switch {
		case err != nil || info.Generation != g:
		case p.Kind == shm.Slot:
			d.order.Slot, d.order.ReplicatedRoot, slot = uint32(p.Index), info.Root, p
			found++
		case p.Kind == shm.Ring:
			d.order.Place, d.order.PrivateRoot = uint32(p.Index), info.Root
			found++
		}
	}
	if found != 2 {
		d.t.Fatalf("%d parts of %v are sealed, want both", found, g)
	}
	return slot
}

func sealedAs(kind shm.PlaceKind, g replica.Generation) func(session.Sealed) bool {
	return func(s session.Sealed) bool { return s.Kind == uint32(kind) && s.Generation == g }
}

// A rank's whole life in processes of its own: attach, initial state, steps, a daemon that goes and comes back meanwhile, a fence,
// a reload, SIGKILL, and a successor that is given the arena and goes on from it.
func TestLifeOfARank(t *testing.T) {
	dir := t.TempDir()
	keeperSocket := filepath.Join(dir, "keeper")
	ctx, cancel := context.WithCancel(context.Background())
	keeper, err := shm.ListenKeeper(keeperSocket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- keeper.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	d := &miniDaemon{t: t, path: filepath.Join(dir, "d.sock")}
	d.start(keeperSocket)
	defer func() { d.end() }()

	rank := startRank(t, d.path)
	d.epoch, d.order = 1, &wire.Order{Action: wire.OrderInit}
	until(d, any1[session.Attach])
	until(d, any1[session.Stopped])
	until(d, sealedAs(shm.Ring, replica.Generation{Epoch: 1}))
	d.load(1, replica.Generation{Epoch: 1})
	until(d, any1[session.Loaded])
	rank.says("ready epoch 1 step 0 weight 0 rng 0")

	rank.tell("step 1")
	until(d, sealedAs(shm.Slot, replica.Generation{Epoch: 1, Step: 1}))
	rank.says("stepped 1")
	d.arena.SetCommitted(replica.Position{Epoch: 1, Step: 1})
	d.arena.SetCandidate(replica.Position{Epoch: 1, Step: 2})

	d.end()
	rank.tell("step 2")
	rank.says("stepped 2") // nobody is there, and training does not notice
	d.start(keeperSocket)
	if d.arena == nil || d.keeper.Session() != 2 {
		t.Fatalf("nothing came back from the keeper in session %d", d.keeper.Session())
	}
	until(d, func(h session.Hello) bool { return h.File != nil })
	two := replica.Generation{Epoch: 1, Step: 2}
	until(d, sealedAs(shm.Slot, two)) // told late, not lost
	slot := d.load(2, two)
	if err := d.arena.Verify(slot); err != nil {
		t.Error(err)
	}

	d.arena.RaiseFence(1)
	d.send(wire.MFence, nil)
	rank.tell("step 3")
	rank.says("fenced")
	if live := d.arena.Step(); live != replica.PackWord(1, 2, replica.Idle) {
		t.Errorf("live %v %v after backing out", live.Generation(), live.Phase())
	}
	rank.tell("join")
	until(d, any1[session.Loaded])
	if d.loaded != d.order.ReplicatedRoot {
		t.Errorf("loaded %v, ordered %v", d.loaded, d.order.ReplicatedRoot)
	}
	rank.says("ready epoch 2 step 2 weight 20 rng 2")

	rank.tell("step 3")
	rank.says("stepped 3")
	d.die(rank)
	if err := d.arena.Verify(slot); err != nil {
		t.Error(err)
	}

	heir := startRank(t, d.path)
	d.arena.RaiseFence(2)
	d.load(3, two)
	until(d, any1[session.Loaded])
	heir.says("ready epoch 3 step 2 weight 20 rng 2")
	heir.tell("leave")
	until(d, any1[session.Leave])
	if err := heir.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// die kills the rank and settles what it left: both ways of seeing its death must tell.
func (d *miniDaemon) die(rank *remote) {
	d.t.Helper()
	p := d.peer
	if err := session.Kill(p.PID(), p.StartTime()); err != nil {
		d.t.Fatal(err)
	}
	gone, exited := false, false
	for !gone || !exited {
		until(d, func(ev session.Event) bool {
			if g, ok := ev.(session.Gone); ok && g.Peer == p {
				gone = true
			}
			if e, ok := ev.(session.Exited); ok && e.PID == p.PID() && e.StartTime == p.StartTime() {
				exited = true
			}
			return gone || exited
		})
	}
	_ = rank.cmd.Wait()
	for _, place := range d.arena.Places() {
		if d.arena.Word(place).State() == replica.SlotCopied {
			_ = d.arena.Finish(place) // or it is torn next
		}
		if d.arena.Tear(place) {
			d.arena.Free(place)
		}
	}
}
