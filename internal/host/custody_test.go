package host

import (
	"context"
	"errors"
	"github.com/replicad/replicad/internal/host/hands"
	"github.com/replicad/replicad/internal/host/rank"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// slowVault is a keeper that answers when it is let: every call announces itself and waits.
type slowVault struct {
	holding.Vault
	called chan string
	let    chan struct{}
}

func (v *slowVault) Put(key string, f *os.File) error {
	v.called <- key
	<-v.let
	return v.Vault.Put(key, f)
}

// came waits for what something beside the host says, while the host handles nothing: it needs no answer from it.
func came[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(fixture.Patience):
		t.Fatalf("waited %v for %s", fixture.Patience, what)
	}
	return v
}

// An arena that takes its time holds up nobody: the host answers meanwhile. It is made once, however often it is asked for.
func TestMirrorIsMadeBesideTheMember(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	k, man, _ := d.private(lj, fixture.Gen(3, 6), 3)
	began, let := make(chan struct{}, 8), make(chan struct{})
	d.hands.Create = func(s shm.Spec) (*shm.Arena, error) {
		began <- struct{}{}
		<-let
		return shm.Create(s)
	}
	type made struct {
		ref *holding.Arena
		err error
	}
	ends := make(chan made, 2)
	for range 2 {
		d.work.Go(func() {
			ref, err := d.mirrorArena(d.ctx, lj.Job.ID, 1, man)
			ends <- made{ref, err}
			d.Post(hands.Closed{}) // until looks again
		})
	}
	for range 2 {
		d.handle(came(t, "a question", d.in)) // with create on the host's goroutine this is where it would stay
	}
	came(t, "the reservation", began)
	if len(lj.Mirrors.All()) != 0 || len(began) != 0 {
		t.Errorf("%d mirrors, %d more reservations, before the first is made", len(lj.Mirrors.All()), len(began))
	}
	soon, cancel := context.WithTimeoutCause(d.ctx, time.Nanosecond, transfer.ErrNotYet) // a push that can't wait
	defer cancel()
	d.serves(func() {
		if _, err := d.mirrorArena(soon, lj.Job.ID, 1, man); !errors.Is(err, transfer.ErrNotYet) {
			t.Errorf("a push meanwhile: %v, want %v", err, transfer.ErrNotYet)
		}
	})
	close(let)
	d.until("both answers", func() bool { return len(ends) == 2 })
	a, b := <-ends, <-ends
	if a.err != nil || b.err != nil || a.ref != b.ref || len(lj.Mirrors.All()) != 1 || lj.Mirrors.Arena(k.Part) != a.ref || len(began) != 0 {
		t.Errorf("made %+v and %+v: mirrors %v", a, b, lj.Mirrors.All())
	}
	if list, err := d.loadArenas(); err != nil || len(list.Arenas) != 1 || !d.parked()[a.ref.Key()] {
		t.Errorf("its list is %+v (%v), the keeper has %v", list, err, d.parked())
	}
}

// The job may end at any moment of that: what was made is given back, and who waited is told.
func TestMirrorOfAJobThatEnded(t *testing.T) {
	for what, parked := range map[string]bool{"while it is reserved": false, "while it is parked": true} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		_, man, _ := d.private(lj, fixture.Gen(3, 6), 3)
		var made *shm.Arena
		d.hands.Create = func(s shm.Spec) (a *shm.Arena, err error) { made, err = shm.Create(s); return made, err }
		ended := func() {
			lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Phase = replica.Ended })
		}
		end := make(chan error, 1)
		d.work.Go(func() {
			_, err := d.mirrorArena(d.ctx, lj.Job.ID, 1, man)
			end <- err
		})
		d.handle(came(t, "the question", d.in))
		ready := came(t, "the arena", d.in)
		if !parked {
			ended()
		}
		d.handle(ready)
		if parked {
			ev := came(t, "the parking", d.in)
			ended()
			d.handle(ev)
		}
		if err := came(t, "the answer", end); !errors.Is(err, transfer.ErrFenced) {
			t.Errorf("%s: %v, want %v", what, err, transfer.ErrFenced)
		}
		d.until("the end of the arena", func() bool { _, err := made.File().Stat(); return err != nil })
		if list, err := d.loadArenas(); len(lj.Mirrors.All())+len(lj.Mirrors.Coming()) != 0 || len(d.parked()) != 1 || err == nil && len(list.Arenas) != 0 {
			t.Errorf("%s: mirrors %v, the keeper has %v, the list %+v: want the producer's alone", what, lj.Mirrors.All(), d.parked(), list)
		}
	}
}

// Bytes are looked for beside the host, and a plan that is closed meanwhile gets no staging: its place is free again.
func TestStagingOfAPlanThatIsClosed(t *testing.T) {
	for what, closes := range map[string]bool{"closed": true, "open": false} {
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
			j.Phase, j.Epoch, j.Plan = replica.Planned, 4, &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 5)}
		}))
		a := d.attach(lj, 0).Arena
		man, _ := manifestFor(a, slot(0), fixture.Gen(3, 5), 3)
		looks, let := make(chan struct{}), make(chan struct{})
		d.hands.Reuse = func(s *shm.Staging) error {
			looks <- struct{}{}
			<-let
			return s.Reuse()
		}
		f := fetch.Parts{Fetcher: d.hands.Fetches, Job: lj.Job, Plan: lj.Job.Plan}
		var s *shm.Staging
		end := make(chan error, 1)
		d.work.Go(func() {
			var err error
			_, s, err = d.hands.Fetches.Stage(d.ctx, lj.Job.ID, a, man, &f)
			end <- err
			d.Post(hands.Closed{}) // until looks again
		})
		d.handle(came(t, "the question", d.in))
		came(t, "the search for bytes", looks)
		if got := states(a, shm.Slot); !slices.Contains(got, replica.SlotCopying) || len(staged(a)) != 1 {
			t.Errorf("%s: slots %v while bytes are looked for", what, got)
		}
		if closes {
			lj.Job = fixture.Closed(lj.Job)
		}
		close(let)
		d.until("the staging", func() bool { return len(end) == 1 })
		switch err := <-end; {
		case closes && (!errors.Is(err, transfer.ErrFenced) || len(staged(a)) != 0 || slices.Contains(states(a, shm.Slot), replica.SlotCopying)):
			t.Errorf("closed: %v, staged %v, slots %v", err, staged(a), states(a, shm.Slot))
		case !closes && (err != nil || s == nil):
			t.Errorf("open: %v", err)
		}
	}
}

// A keeper that does not answer holds up the one rank that must not have its arena before, and nobody else.
func TestSlowKeeperHoldsUpOneRank(t *testing.T) {
	d := newRig(t)
	slow := &slowVault{d.keeper, make(chan string, 8), make(chan struct{})}
	d.keptBy(slow)
	lj := d.put(opening())
	p, r := d.hello(nil)
	r.reads() // the welcome
	d.attachFor(p)
	d.grants(4)
	d.handle(came(t, "the arena", d.in)) // with the keeper on the host's goroutine this is where it would stay
	key := came(t, "the keeper's call", slow.called)
	if lj.Ranks[0] != nil || !d.admission.Claiming("job", 0) {
		t.Error("the arena is handed out before the keeper has it")
	}
	r.quiet(p)
	if _, err := holding.LoadList(arenaListPath(d.cfg)); err != nil {
		t.Error(err)
	}
	var answered atomic.Bool
	d.serves(func() { answered.Store(d.ask(d.ctx, calls(func() {}))) })
	if !answered.Load() {
		t.Error("the host answers nobody")
	}
	close(slow.let)
	d.until("the rank", func() bool { return lj.Ranks[0] != nil })
	if h, _ := r.reads(); h.Type != wire.MAttached {
		t.Errorf("reads message %d, want its arena", h.Type)
	}
	if list, err := d.loadArenas(); err != nil || len(list.Arenas) != 1 || list.Arenas[0].Key != key || list.Arenas[0].PID != p.PID() || !d.parked()[key] {
		t.Errorf("the list on disk: %+v, %v", list, err)
	}
}

// A process that goes while its arena is parked gets none: a fresh one is given back, and its predecessor's stays where it was,
// with the parts that it holds.
func TestGoneWhileItsArenaIsParked(t *testing.T) {
	for what, fresh := range map[string]bool{"fresh": true, "its predecessor's": false} {
		d := newRig(t)
		lj := d.put(opening())
		p, _ := d.hello(nil)
		d.attachFor(p)
		var old *rank.Rank
		if !fresh {
			old = d.attach(lj, 0)
			old.Life, old.Incarnation = rank.Dead, 2
			d.both(old.Arena, 0, fixture.Gen(1, 4))
		}
		d.grants(4)
		if fresh {
			d.handle(came(t, "the arena", d.in))
		}
		var ref *holding.Arena
		if passing := d.admission.Arenas(); len(passing) == 1 {
			ref = passing[0]
		}
		if ref == nil || !fresh && len(lj.View().Copies()) != 2 {
			t.Fatalf("%s: parks %v, holds %d parts meanwhile", what, ref, len(lj.View().Copies()))
		}
		parked := came(t, "the parking", d.in)
		if list, err := d.loadArenas(); err != nil || len(list.Arenas) != 1 || list.Arenas[0].PID != p.PID() || list.Arenas[0].Key != ref.Key() {
			t.Errorf("%s: the list meanwhile is %+v, %v", what, list, err)
		}
		d.handleSession(session.Gone{Peer: p})
		d.handle(parked)
		list, err := d.loadArenas()
		switch {
		case err != nil:
			t.Error(err)
		case fresh && (lj.Ranks[0] != nil || len(list.Arenas) != 0 || d.parked()[ref.Key()]):
			t.Errorf("%s: rank %+v, list %+v, keeper %v", what, lj.Ranks[0], list, d.parked())
		case !fresh && (lj.Ranks[0] != old || len(lj.View().Copies()) != 2 || len(list.Arenas) != 1 || list.Arenas[0].PID != old.PID):
			t.Errorf("%s: rank %+v, %d parts, list %+v", what, lj.Ranks[0], len(lj.View().Copies()), list)
		}
	}
}
