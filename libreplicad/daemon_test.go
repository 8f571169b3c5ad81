package libreplicad_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/libreplicad"
	"github.com/replicad/replicad/replica"
)

const testChunk = 4096

var (
	testCluster = replica.ClusterID{1}
	testJob     = replica.JobID{2}
)

// testDaemon is the daemon's side of one rank, made of the daemon's own parts: it owns an arena and passes orders; the test says which.
type testDaemon struct {
	t      testing.TB
	path   string
	slots  int
	server *session.Server
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	arena   *shm.Arena
	peer    session.Peer
	refuse  string             // answer to the next attach
	group   replica.GroupID    // that the last attach named
	order   func() *wire.Order // answer to STOPPED; nil: none yet
	epoch   replica.Epoch      // of the order
	seen    chan session.Event // sealed, stopped, loaded, fail
	kv      map[string][]byte
	once    uint32          // of the newest addition
	drop    int             // additions that are taken and not answered
	late    bool            // requests are carried out and answered when they are let go
	held    []func()        // those that wait for that
	epochs  []replica.Epoch // of the requests to the rendezvous
	waiters map[string][]session.KV
}

const incarnation replica.Incarnation = 5

func newDaemon(t testing.TB) *testDaemon {
	d := &testDaemon{t: t, path: filepath.Join(t.TempDir(), "s", "sock"), slots: 4, seen: make(chan session.Event, 1024), kv: map[string][]byte{}, waiters: map[string][]session.KV{}}
	d.start()
	t.Cleanup(func() {
		d.halt()
		if d.arena != nil {
			_ = d.arena.Close()
		}
	})
	return d
}

func (d *testDaemon) start() {
	d.t.Helper()
	var err error
	if d.server, err = session.Listen(session.Config{Path: d.path}); err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	server := d.server
	d.done.Go(func() { _ = server.Run(ctx) })
	d.done.Go(func() {
		for {
			select {
			case ev := <-server.Events():
				d.handle(ev)
			case <-ctx.Done():
				return
			}
		}
	})
}

func (d *testDaemon) halt() {
	d.stop()
	d.done.Wait()
}

func (d *testDaemon) handle(ev session.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch ev := ev.(type) {
	case session.Hello:
		d.peer = ev.Peer
		h := wire.RankHeader{Type: wire.MWelcome, Request: ev.Header.Request}
		body := wire.Welcome{ABI: wire.RankABI, Rank: ev.Rank, Cluster: testCluster, Job: testJob, Era: 1, ChunkBytes: testChunk}.Append(nil)
		if ev.File != nil {
			_ = ev.File.Close()
			if d.refuse != "" {
				ev.Peer.Refuse(ev.Header.Request, wire.CodeStopped, d.refuse)
				return
			}
			h.Type = wire.MAttached
			body = d.attached().Append(nil)
		}
		_ = ev.Peer.Send(h, body)
	case session.Attach:
		d.group = ev.Group
		d.attach(ev)
	case session.KV:
		d.epochs = append(d.epochs, ev.Header.Epoch)
		d.soon(func() { d.answer(ev) })
	case session.Scope:
		d.soon(func() {
			_ = ev.Peer.Send(wire.RankHeader{Type: wire.MScoped, Request: ev.Header.Request}, wire.Scoped{Epoch: d.epoch + 1}.Append(nil))
		})
	case session.Pause:
		if ev.Header.Request != 0 {
			_ = ev.Peer.Send(wire.RankHeader{Type: wire.MPaused, Request: ev.Header.Request}, nil)
		}
	case session.Leave:
		d.soon(func() { _ = ev.Peer.Send(wire.RankHeader{Type: wire.MBye, Request: ev.Header.Request}, nil) })
	case session.Stopped:
		d.seen <- ev
		if d.order != nil {
			if o := d.order(); o != nil {
				_ = ev.Peer.Send(wire.RankHeader{Type: wire.MOrder, Epoch: d.epoch, Incarnation: incarnation}, o.Append(nil))
			}
		}
	case session.Loaded:
		d.seen <- ev
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MOrder, Epoch: d.epoch, Incarnation: incarnation}, wire.Order{Action: wire.OrderGo}.Append(nil))
	case session.Sealed, session.Fail, session.Unloadable, session.Lacks:
		d.seen <- ev
	}
}

// soon does now, or when it is let go, what answers a request.
func (d *testDaemon) soon(answer func()) {
	if d.late {
		d.held = append(d.held, answer)
		return
	}
	answer()
}

// letGo answers what came until now.
func (d *testDaemon) letGo() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, answer := range d.held {
		answer()
	}
	d.held = nil
}

func (d *testDaemon) attached() wire.Attached {
	s := d.arena.Spec()
	return wire.Attached{ArenaBytes: d.arena.Header().ArenaBytes, Incarnation: incarnation, Slots: uint32(s.Slots), Ring: uint32(s.Ring), Fence: d.arena.Fence(), Job: testJob}
}

func (d *testDaemon) attach(ev session.Attach) {
	if d.refuse != "" {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeRefused, d.refuse)
		d.refuse = ""
		return
	}
	if d.arena == nil {
		g, err := replica.NewGeometry(ev.Regions)
		if err == nil {
			d.arena, err = shm.Create(shm.Spec{Cluster: testCluster, Era: 1, Job: testJob, Rank: 2, Geometry: g, ChunkBytes: testChunk, Slots: d.slots})
		}
		if err != nil {
			ev.Peer.Refuse(ev.Header.Request, wire.CodeRefused, err.Error())
			return
		}
		d.arena.SetOwner(incarnation, 1, 1)
	}
	_ = ev.Peer.SendFile(wire.RankHeader{Type: wire.MAttached, Request: ev.Header.Request}, d.attached().Append(nil), d.arena.File())
}

func (d *testDaemon) answer(ev session.KV) {
	switch ev.Op {
	case wire.MKVSet:
		d.kv[ev.Key] = ev.Value
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MKVOK, Request: ev.Header.Request}, wire.AppendKVOK(nil, wire.CodeOK))
		for _, w := range d.waiters[ev.Key] {
			_ = w.Peer.Send(wire.RankHeader{Type: wire.MKVValue, Request: w.Header.Request}, wire.KVValue{Value: ev.Value}.Append(nil))
		}
	case wire.MKVGet:
		if v, ok := d.kv[ev.Key]; ok {
			_ = ev.Peer.Send(wire.RankHeader{Type: wire.MKVValue, Request: ev.Header.Request}, wire.KVValue{Value: v}.Append(nil))
			return
		}
		d.waiters[ev.Key] = append(d.waiters[ev.Key], ev)
		d.seen <- ev
	case wire.MKVCheck:
		code := wire.CodeAgain
		if _, ok := d.kv[ev.Key]; ok {
			code = wire.CodeOK
		}
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MKVOK, Request: ev.Header.Request}, wire.AppendKVOK(nil, code))
	case wire.MKVAdd:
		n, _ := strconv.ParseInt(string(d.kv[ev.Key]), 10, 64)
		if ev.Once != d.once {
			n += int64(binary.LittleEndian.Uint64(ev.Value))
			d.kv[ev.Key] = strconv.AppendInt(nil, n, 10)
		}
		if d.once = ev.Once; d.drop > 0 {
			d.drop--
			ev.Peer.Close()
			return
		}
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MKVTotal, Request: ev.Header.Request}, wire.KVTotal{Total: n}.Append(nil))
	case wire.MKVCompareSet:
		if expected, desired := ev.Value[:ev.Members], ev.Value[ev.Members:]; bytes.Equal(d.kv[ev.Key], expected) {
			d.kv[ev.Key] = desired
		}
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MKVValue, Request: ev.Header.Request}, wire.KVValue{Value: d.kv[ev.Key]}.Append(nil))
	case wire.MKVDelete:
		var there int64
		if _, ok := d.kv[ev.Key]; ok {
			there = 1
		}
		delete(d.kv, ev.Key)
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MKVTotal, Request: ev.Header.Request}, wire.KVTotal{Total: there}.Append(nil))
	case wire.MBarrier:
		_ = ev.Peer.Send(wire.RankHeader{Type: wire.MKVOK, Request: ev.Header.Request}, wire.AppendKVOK(nil, wire.CodeOK))
	}
}

// orders sets what STOPPED is answered with from now on.
func (d *testDaemon) orders(epoch replica.Epoch, o wire.Order) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.epoch, d.order = epoch, func() *wire.Order { return &o }
}

// load is the order to load what lies in these places.
func (d *testDaemon) load(slot, ring int, step replica.Step) wire.Order {
	d.t.Helper()
	rep, err := d.arena.Sealed(shm.Place{Kind: shm.Slot, Index: slot})
	if err != nil {
		d.t.Fatal(err)
	}
	priv, err := d.arena.Sealed(shm.Place{Kind: shm.Ring, Index: ring})
	if err != nil {
		d.t.Fatal(err)
	}
	return wire.Order{Action: wire.OrderLoad, Source: 1, Step: step, Generation: rep.Generation, Slot: uint32(slot), Place: uint32(ring), ReplicatedRoot: rep.Root, PrivateRoot: priv.Root}
}

func (d *testDaemon) fence(e replica.Epoch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.arena.RaiseFence(e)
	if d.peer != nil {
		_ = d.peer.Send(wire.RankHeader{Type: wire.MFence, Epoch: e, Incarnation: incarnation}, nil)
	}
}

// await takes events until one matches.
func await[E session.Event](d *testDaemon, match func(E) bool) E {
	d.t.Helper()
	end := time.After(20 * time.Second)
	for {
		select {
		case ev := <-d.seen:
			if e, ok := ev.(E); ok && match(e) {
				return e
			}
		case <-end:
			d.t.Fatalf("no such %T came", *new(E))
		}
	}
}

// A rank with one region of each class.
type testRank struct {
	*libreplicad.Session
	weight, scale, base []float32
	rng                 []uint64
	regions             []libreplicad.Region
}

func newRank(t testing.TB, d *testDaemon) *testRank {
	t.Helper()
	r := &testRank{}
	floats := func(name string, n int, class replica.Class) []float32 {
		m, v, err := libreplicad.AllocFloat32s(n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Free() })
		r.regions = append(r.regions, libreplicad.Region{Name: name, DType: replica.F32, Class: class, Data: m})
		return v
	}
	r.weight = floats("weight", 5000, replica.Window)
	r.base = floats("base", 3000, replica.Frozen)
	r.scale = floats("scale", 17, replica.Volatile)
	m, rng, err := libreplicad.AllocUint64s(4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Free() })
	r.rng = rng
	r.regions = append(r.regions, libreplicad.Region{Name: "rng", DType: replica.U64, Kind: replica.Private, Class: replica.Volatile, Data: m})
	if r.Session, err = libreplicad.Open(t.Context(), libreplicad.Options{Socket: d.path, Job: "opticks", Rank: 2, World: 4}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if err := r.Register(r.regions...); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *testRank) fill(seed float32) {
	for i := range r.weight {
		r.weight[i] = seed + float32(i)
	}
	for i := range r.scale {
		r.scale[i] = seed * 2
	}
	r.rng[0] = uint64(seed)
}

// started brings a rank to step 0 of epoch 1, opened.
func started(t testing.TB, d *testDaemon) *testRank {
	t.Helper()
	r := newRank(t, d)
	must(t, r.Attach(t.Context()))
	d.orders(1, wire.Order{Action: wire.OrderInit})
	o, err := r.Join(t.Context())
	must(t, err)
	if o.Action != libreplicad.Init || o.Epoch != 1 || o.Job != testJob || o.Incarnation != incarnation {
		t.Fatalf("joined %+v", o)
	}
	r.fill(1)
	must(t, r.SealInitial(t.Context()))
	d.orders(1, d.load(0, 0, 0))
	r.load(t, 1, 0)
	return r
}

// load joins, loads and waits for the epoch to open.
func (r *testRank) load(t testing.TB, epoch replica.Epoch, step replica.Step) {
	t.Helper()
	o, err := r.Join(t.Context())
	must(t, err)
	if o.Action != libreplicad.Load || o.Epoch != epoch || o.Step != step {
		t.Fatalf("joined %+v, want a load of epoch %d step %d", o, epoch, step)
	}
	must(t, r.Load())
	must(t, r.Ready(t.Context()))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
