package libreplicad_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/libreplicad"
	"github.com/replicad/replicad/replica"
)

const patience = 20 * time.Second

func sealedAs(kind uint32, g replica.Generation) func(session.Sealed) bool {
	return func(s session.Sealed) bool { return s.Kind == kind && s.Generation == g }
}

// What C seals the daemon's own code must find whole: digests, root, geometry, frozen root.
func TestSealedByCIsWholeToTheDaemon(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	for step := replica.Step(1); step <= 2; step++ {
		must(t, r.StepEnter(step, patience))
		r.fill(float32(step) * 10)
		must(t, r.StepExit(step, 0))
	}
	g := replica.Generation{Epoch: 1, Step: 2}
	slot := await(d, sealedAs(0, g))
	place := shm.Place{Kind: shm.Slot, Index: int(slot.Index)}
	for _, p := range []shm.Place{place, {Kind: shm.Slot}, {Kind: shm.Ring}, {Kind: shm.Frozen}} {
		if err := d.arena.Verify(p); err != nil {
			t.Errorf("%v: %v", p, err)
		}
	}
	info, err := d.arena.Sealed(place)
	must(t, err)
	frozen, err := d.arena.Sealed(shm.Place{Kind: shm.Frozen})
	must(t, err)
	if info.FrozenRoot != frozen.Root || info.Rank != 2 || info.Incarnation != incarnation {
		t.Errorf("slot %+v, frozen root %v", info, frozen.Root)
	}
	if w := d.arena.Step(); w != replica.PackWord(1, 2, replica.Idle) {
		t.Errorf("step word %v %v", w.Generation(), w.Phase())
	}
	if w := d.arena.Good(); w.Generation() != g {
		t.Errorf("good word %v", w.Generation())
	}
}

// Several threads that copy one capture seal the same as one.
func TestCaptureThreads(t *testing.T) {
	t.Run("bad", func(t *testing.T) {
		for _, text := range []string{"0", "17", "-1", "two", "1.5"} {
			t.Setenv("REPLICAD_CAPTURE_THREADS", text)
			if _, err := libreplicad.Open(t.Context(), libreplicad.Options{Socket: "/nowhere", Job: "opticks", Rank: 2, World: 4}); err == nil || !strings.Contains(err.Error(), `REPLICAD_CAPTURE_THREADS="`+text+`": want 1 to 16`) {
				t.Errorf("%s: %v", text, err)
			}
		}
	})
	t.Setenv("REPLICAD_CAPTURE_THREADS", "4")
	d := newDaemon(t)
	r := started(t, d)
	for step := replica.Step(1); step <= 20; step++ {
		d.arena.SetCandidate(replica.Position{Epoch: 1, Step: step})
		must(t, r.StepEnter(step, patience))
		r.fill(float32(step))
		must(t, r.StepExit(step, 0))
		slot := shm.Place{Kind: shm.Slot, Index: int(await(d, sealedAs(0, replica.Generation{Epoch: 1, Step: step})).Index)}
		must(t, d.arena.Verify(slot))
		d.arena.Free(slot)
	}
}

// A restart in the same process: the state goes back to what was sealed, whatever became of it meanwhile.
func TestFenceThenLoad(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	must(t, r.StepEnter(1, patience))
	r.fill(10)
	must(t, r.StepExit(1, 0))
	slot := await(d, sealedAs(0, replica.Generation{Epoch: 1, Step: 1}))
	must(t, r.StepEnter(2, patience))
	r.fill(20)
	must(t, r.StepExit(2, 0))
	await(d, sealedAs(1, replica.Generation{Epoch: 1, Step: 2}))

	fence := r.Fence()
	d.fence(1)
	<-fence
	if !r.Fenced() {
		t.Fatal("the fence channel is closed and Fenced says no")
	}
	if err := r.StepEnter(3, patience); !errors.Is(err, libreplicad.ErrFenced) {
		t.Fatalf("step entered after the fence: %v", err)
	}
	if w := d.arena.Step(); w != replica.PackWord(1, 2, replica.Idle) {
		t.Fatalf("step word after backing out: %v %v", w.Generation(), w.Phase())
	}
	r.fill(-1)
	ring := ringOf(t, d, replica.Generation{Epoch: 1, Step: 1})
	d.orders(2, d.load(int(slot.Index), ring, 1))
	r.load(t, 2, 1)
	if r.weight[3] != 13 || r.scale[16] != 20 || r.rng[0] != 1 {
		t.Fatalf("loaded weight %v, scale %v, rng %v", r.weight[3], r.scale[16], r.rng[0])
	}
	select {
	case <-r.Fence():
		t.Fatal("the new epoch's fence is closed")
	default:
	}
	must(t, r.StepEnter(2, patience))
	must(t, r.StepExit(2, 0))
}

func ringOf(t *testing.T, d *testDaemon, g replica.Generation) int {
	t.Helper()
	for i := range d.arena.Spec().Ring {
		if info, err := d.arena.Sealed(shm.Place{Kind: shm.Ring, Index: i}); err == nil && info.Generation == g {
			return i
		}
	}
	t.Fatalf("no private part of %v is sealed", g)
	return 0
}

func TestLoadRefusesOtherBytes(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	d.fence(1)
	o := d.load(0, 0, 0)
	o.ReplicatedRoot[5] ^= 1
	d.orders(2, o)
	_, err := r.Join(t.Context())
	must(t, err)
	r.weight[7] = 99
	if err := r.Load(); !errors.Is(err, libreplicad.ErrCorrupt) {
		t.Fatalf("loaded under another root: %v", err)
	}
	if r.weight[7] != 99 {
		t.Error("live state was touched before the bytes were verified")
	}
	if err := r.Ready(t.Context()); !errors.Is(err, libreplicad.ErrState) {
		t.Errorf("ready without a load: %v", err)
	}
}

// A further fault comes while a rank loads, and the daemon frees what the plan of the closed epoch named: the rank is healthy, its bytes are
// no copy that is bad, and it joins the next epoch.
func TestLoadOfAnEpochThatIsClosedMeanwhile(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	must(t, r.StepEnter(1, patience))
	r.fill(10)
	must(t, r.StepExit(1, 0))
	slot := await(d, sealedAs(0, replica.Generation{Epoch: 1, Step: 1}))
	d.fence(1)
	older := d.load(0, 0, 0)
	d.orders(2, d.load(int(slot.Index), ringOf(t, d, replica.Generation{Epoch: 1, Step: 1}), 1))
	_, err := r.Join(t.Context())
	must(t, err)
	d.fence(2)
	d.arena.Free(shm.Place{Kind: shm.Slot, Index: int(slot.Index)})
	if err := r.Load(); !errors.Is(err, libreplicad.ErrFenced) {
		t.Fatalf("load of a closed epoch: %v, want that it is closed", err)
	}
	d.orders(3, older)
	r.load(t, 3, 0)
	for len(d.seen) > 0 {
		if ev, ok := (<-d.seen).(session.Unloadable); ok {
			t.Errorf("the daemon is told of a bad copy: %s", ev.Text)
		}
	}
}

func TestFrozenGoodSealsNothing(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	must(t, r.StepEnter(1, patience))
	r.FreezeGood()
	must(t, r.StepExit(1, 0))
	must(t, r.StepEnter(2, patience)) // does not wait for a capture that can't come
	for _, p := range d.arena.Places() {
		if info, err := d.arena.Sealed(p); err == nil && p.Kind == shm.Slot && info.Generation.Step == 1 {
			t.Fatalf("%v holds a step that is not known to be good", p)
		}
	}
	if d.arena.Good().Step() != 0 {
		t.Fatalf("good word %v", d.arena.Good().Generation())
	}
}

// Training does not notice that the daemon is away; what was sealed meanwhile is told afterwards.
func TestDaemonComesBack(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	d.halt()
	must(t, r.StepEnter(1, patience))
	r.fill(5)
	must(t, r.StepExit(1, 0))
	must(t, r.StepEnter(2, patience))
	must(t, r.StepExit(2, 0))
	d.start()
	await(d, sealedAs(0, replica.Generation{Epoch: 1, Step: 1}))
	await(d, sealedAs(1, replica.Generation{Epoch: 1, Step: 2}))
	if s := r.Stats(); s.Reconnects != 1 {
		t.Errorf("%d reconnects", s.Reconnects)
	}
	must(t, r.KVSet(t.Context(), "a", []byte("b")))
}

// What the copies lack is said to each daemon: the one that comes back has forgotten it.
func TestLacks(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	says := func(text string) func(session.Lacks) bool {
		return func(ev session.Lacks) bool { return ev.Text == text }
	}
	must(t, r.Lacks("model.teacher.0.weight"))
	await(d, says("model.teacher.0.weight"))
	d.halt()
	d.start()
	await(d, says("model.teacher.0.weight"))
	must(t, r.Lacks(""))
	await(d, says(""))
}

func TestRendezvous(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	big := slices.Repeat([]byte{7}, libreplicad.MaxValueBytes)
	must(t, r.KVSet(t.Context(), "big", big))
	got, err := r.KVGet(t.Context(), "big")
	must(t, err)
	if !slices.Equal(got, big) {
		t.Error("another value came back")
	}
	must(t, r.Barrier(t.Context(), "up", 4))
	must(t, r.Leave(t.Context()))

	// A get of a key that is not there waits, and ends with the epoch.
	var fenced error
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, fenced = r.KVGet(context.Background(), "missing")
	}()
	await(d, func(session.KV) bool { return true })
	d.fence(1)
	<-done
	if !errors.Is(fenced, libreplicad.ErrFenced) {
		t.Errorf("get ended with %v", fenced)
	}
	// A fault before all ranks have left needs those back that have.
	if err := r.Leave(t.Context()); !errors.Is(err, libreplicad.ErrFenced) {
		t.Errorf("left a closed epoch: %v", err)
	}
}

// Counters, as torch's stores have them: a lost answer doesn't make an addition count twice.
func TestCounters(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	there, err := r.KVCheck(t.Context(), "n")
	must(t, err)
	if there {
		t.Error("a key that nobody set is there")
	}
	d.mu.Lock()
	d.drop = 1
	d.mu.Unlock()
	n, err := r.KVAdd(t.Context(), "n", 3)
	must(t, err)
	if n != 3 || r.Stats().Reconnects != 1 {
		t.Errorf("3 added to nothing is %d, after %d reconnects", n, r.Stats().Reconnects)
	}
	if n, err = r.KVAdd(t.Context(), "n", -4); n != -1 || err != nil {
		t.Errorf("then 4 less: %d, %v", n, err)
	}
	v, err := r.KVGet(t.Context(), "n")
	must(t, err)
	if there, err = r.KVCheck(t.Context(), "n"); !there || err != nil || string(v) != "-1" {
		t.Errorf("it is there: %v, %v, and reads %q", there, err, v)
	}
	if v, err = r.KVCompareSet(t.Context(), "n", []byte("5"), []byte("6")); string(v) != "-1" || err != nil {
		t.Errorf("compared with another: %q, %v", v, err)
	}
	if v, err = r.KVCompareSet(t.Context(), "n", []byte("-1"), []byte("6")); string(v) != "6" || err != nil {
		t.Errorf("compared: %q, %v", v, err)
	}
	for _, want := range []bool{true, false} {
		if deleted, err := r.KVDelete(t.Context(), "n"); deleted != want || err != nil {
			t.Errorf("deleted %v, %v, want %v", deleted, err, want)
		}
	}
}

// Processes meet for the epoch to come before they attach, whatever becomes of the daemon meanwhile; Join takes them into it.
func TestScope(t *testing.T) {
	d := newDaemon(t)
	r := newRank(t, d)
	if err := r.KVSet(t.Context(), "k", nil); !errors.Is(err, libreplicad.ErrState) {
		t.Errorf("set without a scope: %v", err)
	}
	e, err := r.Scope(t.Context())
	must(t, err)
	must(t, r.KVSet(t.Context(), "k", []byte("v")))
	d.halt()
	d.start()
	v, err := r.KVGet(t.Context(), "k")
	must(t, err)
	must(t, r.Attach(t.Context()))
	d.orders(7, wire.Order{Action: wire.OrderInit})
	_, err = r.Join(t.Context())
	must(t, err)
	must(t, r.Barrier(t.Context(), "b", 1))
	d.mu.Lock()
	defer d.mu.Unlock()
	if last := len(d.epochs) - 1; e != 1 || string(v) != "v" || d.epochs[0] != 1 || d.epochs[last-1] != 1 || d.epochs[last] != 7 {
		t.Errorf("scope %d, value %q, asked for epochs %v", e, v, d.epochs)
	}
}

func TestGroupNamedLate(t *testing.T) {
	d := newDaemon(t)
	r := newRank(t, d)
	if err := r.SetGroup(4); !errors.Is(err, libreplicad.ErrInvalid) {
		t.Errorf("group 4 of a world of 4: %v", err)
	}
	must(t, r.SetGroup(3))
	must(t, r.Attach(t.Context()))
	d.mu.Lock()
	if d.group != 3 {
		t.Errorf("it attached in group %d", d.group)
	}
	d.mu.Unlock()
	if err := r.SetGroup(1); !errors.Is(err, libreplicad.ErrState) {
		t.Errorf("after the claim: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	d := newDaemon(t)
	r := newRank(t, d)
	d.mu.Lock()
	d.refuse = "rank 2 is held by process 77: wait for it to exit"
	d.mu.Unlock()
	var e *libreplicad.Error
	if err := r.Attach(t.Context()); !errors.Is(err, libreplicad.ErrRefused) || !errors.As(err, &e) || e.Text != "rank 2 is held by process 77: wait for it to exit" {
		t.Fatalf("attach: %v", err)
	}
	must(t, r.Attach(t.Context())) // the same handle may try again

	t.Run("other geometry", func(t *testing.T) {
		o := newRank(t, d)
		o.Close()
		m, err := libreplicad.Alloc(64)
		must(t, err)
		s, err := libreplicad.Open(t.Context(), libreplicad.Options{Socket: d.path, Job: "opticks", Rank: 2, World: 4})
		must(t, err)
		defer s.Close()
		must(t, s.Register(libreplicad.Region{Name: "weight", DType: replica.F32, Data: m}))
		if err := s.Attach(t.Context()); !errors.Is(err, libreplicad.ErrRefused) {
			t.Errorf("attached to an arena of another geometry: %v", err)
		}
	})
	t.Run("region", func(t *testing.T) {
		m, err := libreplicad.Alloc(64)
		must(t, err)
		s, err := libreplicad.Open(t.Context(), libreplicad.Options{Socket: d.path, Job: "opticks", Rank: 2, World: 4})
		must(t, err)
		defer s.Close()
		for _, bad := range []libreplicad.Region{
			{Name: "", DType: replica.F32, Data: m},
			{Name: "a\x01", DType: replica.F32, Data: m},
			{Name: "a", DType: 99, Data: m},
			{Name: "a", DType: replica.F32},
			{Name: "a", DType: replica.F32, Shape: []uint64{3}, Data: m},
			{Name: "a", DType: replica.F32, Kind: replica.Private, Class: replica.Frozen, Data: m},
			{Name: "a", DType: replica.F32, Kind: replica.Private, Class: replica.Window, Data: m},
			{Name: "a", DType: replica.F32, Class: replica.Window, Flags: replica.InWindow, Data: m},
		} {
			if err := s.Register(bad); !errors.Is(err, libreplicad.ErrInvalid) {
				t.Errorf("registered %+v: %v", bad, err)
			}
		}
		two := libreplicad.Region{Name: "a", DType: replica.F32, Data: m}
		if err := s.Register(two, two); !errors.Is(err, libreplicad.ErrInvalid) {
			t.Errorf("registered one name twice: %v", err)
		}
	})
	t.Run("no daemon", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, err := libreplicad.Open(ctx, libreplicad.Options{Socket: d.path + ".none", Job: "opticks", Rank: 2, World: 4}); !errors.Is(err, libreplicad.ErrGone) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("open: %v", err)
		}
	})
}

// A rank of thousands of tensors whose calls are all cut at once gets there by calling again: the geometry does not fit the socket, so that calls are
// cut in the middle of it, and the answer comes late.
func TestAttachGoesOnWhereItWasCut(t *testing.T) {
	d := newDaemon(t)
	s, err := libreplicad.Open(t.Context(), libreplicad.Options{Socket: d.path, Job: "opticks", Rank: 2, World: 4})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	m, err := libreplicad.Alloc(8000 * 64)
	must(t, err)
	t.Cleanup(func() { _ = m.Free() })
	regions := make([]libreplicad.Region, 8000)
	for i := range regions {
		regions[i] = libreplicad.Region{Name: fmt.Sprintf("expert.%d", i), DType: replica.F32, Data: m.Slice(64*i, 64)}
	}
	must(t, s.Register(regions...))
	now, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	cut := 0
	for ; ; cut++ {
		err := s.Attach(now)
		if err == nil {
			break
		}
		if !errors.Is(err, libreplicad.ErrTimeout) {
			t.Fatalf("call %d: %v", cut, err)
		}
	}
	if cut < 2 {
		t.Errorf("%d calls were cut, want several", cut)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.arena.Geometry().Regions); n != 8000 {
		t.Errorf("the arena is for %d regions", n)
	}
}

// Each call that waits for an answer can be cut and made again: the answer that comes between two calls is taken, and a write counts once. The
// daemon here answers a request only after the call for it was cut.
func TestACallThatWasCutGoesOn(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	must(t, r.KVSet(t.Context(), "there", []byte("1")))
	for _, c := range []struct {
		name string
		call func(context.Context) (any, error)
		want any
	}{
		{"scope", func(ctx context.Context) (any, error) { return r.Scope(ctx) }, replica.Epoch(2)},
		{"set", func(ctx context.Context) (any, error) { return nil, r.KVSet(ctx, "a", []byte("b")) }, nil},
		{"get", func(ctx context.Context) (any, error) { v, err := r.KVGet(ctx, "there"); return string(v), err }, "1"},
		{"check", func(ctx context.Context) (any, error) { return r.KVCheck(ctx, "there") }, true},
		{"add", func(ctx context.Context) (any, error) { return r.KVAdd(ctx, "n", 3) }, int64(3)},
		{"add once more", func(ctx context.Context) (any, error) { return r.KVAdd(ctx, "n", 3) }, int64(6)},
		{"compare and set", func(ctx context.Context) (any, error) {
			v, err := r.KVCompareSet(ctx, "n", []byte("6"), []byte("9"))
			return string(v), err
		}, "9"},
		{"delete", func(ctx context.Context) (any, error) { return r.KVDelete(ctx, "n") }, true},
		{"barrier", func(ctx context.Context) (any, error) { return nil, r.Barrier(ctx, "up", 4) }, nil},
		{"leave", func(ctx context.Context) (any, error) { return nil, r.Leave(ctx) }, nil},
	} {
		d.mu.Lock()
		d.late = true
		d.mu.Unlock()
		cuts := 0
		for ; ; cuts++ {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			got, err := c.call(ctx)
			cancel()
			if err == nil {
				if got != c.want {
					t.Errorf("%s: %v, want %v", c.name, got, c.want)
				}
				break
			}
			if !errors.Is(err, libreplicad.ErrTimeout) || cuts == 500 {
				t.Fatalf("%s, cut %d times: %v", c.name, cuts, err)
			}
			d.letGo()
		}
		if cuts == 0 {
			t.Errorf("%s was not cut", c.name)
		}
	}
}

func TestStopped(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	d.fence(1)
	d.orders(2, wire.Order{Action: wire.OrderStop, Code: wire.CodeStopped, Text: "job ended"})
	if _, err := r.Join(t.Context()); !errors.Is(err, libreplicad.ErrStopped) {
		t.Fatalf("join: %v", err)
	}
}

// A rank that the daemon does not take back is woken and told to exit.
func TestSuperseded(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	fence := r.Fence()
	d.halt()
	d.refuse = "rank 2 was claimed anew"
	d.start()
	<-fence
	if _, err := r.Join(t.Context()); !errors.Is(err, libreplicad.ErrStopped) {
		t.Fatalf("join: %v", err)
	}
	if err := r.KVSet(t.Context(), "k", nil); !errors.Is(err, libreplicad.ErrStopped) {
		t.Fatalf("set: %v", err)
	}
}

// The settle rule may ask ranks that stopped to seal the live state they stand at.
func TestCaptureWhileStopped(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	d.arena.SetCadence(100) // no capture of its own
	must(t, r.StepEnter(1, patience))
	r.fill(10)
	must(t, r.StepExit(1, 0))
	d.fence(1)
	g := replica.Generation{Epoch: 1, Step: 1}
	d.orders(1, wire.Order{Action: wire.OrderCapture, Generation: g})
	joined := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := r.Join(ctx)
		joined <- err
	}()
	slot := await(d, sealedAs(0, g))
	if err := d.arena.Verify(shm.Place{Kind: shm.Slot, Index: int(slot.Index)}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-joined; !errors.Is(err, context.Canceled) {
		t.Errorf("join: %v", err)
	}
}

// The words of a step cost no allocation. The daemon is away: its own would be counted.
func TestStepAllocatesNothing(t *testing.T) {
	d := newDaemon(t)
	r := started(t, d)
	d.halt()
	step := replica.Step(0)
	if n := testing.AllocsPerRun(100, func() {
		step++
		if r.StepEnter(step, patience) != nil || r.StepExit(step, 0) != nil {
			t.Error("a step failed")
		}
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}
