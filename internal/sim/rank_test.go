package sim

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// The words of the control page that a rank writes, as libreplicad's layout.h has them.
const (
	atStep   = 512
	atGood   = 576
	atHolder = 1216

	atFence   = 640 // a daemon writes these
	atCadence = 832
)

// rank does what libreplicad and a training loop on it do: the words, the places and the messages, in the same order.
type rank struct {
	*process
	w     *world
	of    replica.Rank
	group replica.GroupID

	peer    *peer // nil: the daemon is away
	request uint32
	welcome wire.Welcome
	inc     replica.Incarnation
	arena   *shm.Arena
	page    []byte

	step       replica.Word // as this process left it
	held       replica.Epoch
	initial    replica.Epoch
	went       replica.Epoch // let go in it
	epoch      replica.Epoch
	ordered    wire.Order    // not obeyed yet
	orderOf    replica.Epoch // of ordered; 0: there is none
	capture    replica.Generation
	bye        bool
	stopped    bool
	paused     uint32
	notices    []wire.Sealed
	has        replica.Step       // the live state is that of this step
	lacks      replica.Generation // of its newest step, which it has not captured; zero: it has
	waitsGo    bool
	answered   answer
	client     client
	unloadable bool // what it was to load is not what was sealed: the process ends, as programs do
}

// startRank starts a process for a rank.
func (w *world) startRank(l *launcher, of replica.Rank) *process {
	pid := w.nextPID()
	p := &process{pid: pid, start: uint64(pid) + 100, m: l.m, rank: of, ended: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(l.ctx)
	l.begun[of]++
	_, life := l.m.life()
	p.dice = w.dice(fmt.Sprintf("rank %d on %s", of, l.m.name), uint64(life)<<32|l.begun[of])
	w.enter(p)
	r := &rank{process: p, w: w, of: of, group: w.groups[of]}
	startsIn := p.delay()
	if !w.warm {
		startsIn = 100*time.Millisecond + 20*p.delay()
	}
	l.runs.Go(func() {
		status := int32(137)
		func() {
			defer func() {
				if x := recover(); x != nil {
					if _, ok := x.(killed); !ok {
						panic(x)
					}
				}
			}()
			p.sleep(startsIn)
			status = r.main()
		}()
		p.end(status)
		if r.peer != nil {
			r.peer.hangUp()
		}
		if r.arena != nil {
			r.arena.Close()
			unix.Munmap(r.page) //nolint:errcheck // likewise
		}
		w.exit(p)
		select {
		case l.ends <- p:
		case <-l.ctx.Done():
		}
	})
	return p
}

// say tells the daemon something; one that is away is not told.
func (r *rank) say(ev session.Event) {
	r.do(func() {})
	if r.peer != nil && !r.peer.d.post(ev) {
		r.peer = nil
	}
}

func (r *rank) head(t uint16, request uint32) wire.RankHeader {
	return wire.RankHeader{Type: t, Request: request, Epoch: r.epoch, Incarnation: r.inc}
}

func (r *rank) next() uint32 { r.request++; return r.request }

// look takes what the daemon has said, connects again to one that has come back, and lets at most so much time pass.
func (r *rank) look(most time.Duration) {
	if r.peer != nil && r.peer.d.ctx.Err() != nil {
		r.peer = nil
	}
	if r.peer == nil {
		r.reconnect()
	}
	r.hears()
	if r.peer == nil {
		r.sleep(most)
		return
	}
	select {
	case <-r.ctx.Done():
		panic(killed{})
	case <-r.peer.d.ctx.Done():
	case m := <-r.peer.in:
		r.hear(m)
	case <-time.After(most):
	}
}

func (r *rank) reconnect() {
	d := r.m.running()
	if d == nil || r.arena == nil {
		return
	}
	file, err := unixsock.Duplicate(r.arena.File())
	if err != nil {
		r.w.t.Error(err)
		return
	}
	r.peer = d.connect(r.pid, r.start)
	r.say(session.Hello{Peer: r.peer, Header: wire.RankHeader{Type: wire.MReattach, Request: r.next()}, Hello: r.hello(), File: file})
}

func (r *rank) hello() wire.Hello {
	return wire.Hello{ABI: wire.RankABI, Rank: r.of, World: r.w.world, Group: r.group, Nonce: r.start, PID: uint64(r.pid), Job: "job"}
}

func (r *rank) hear(m message) {
	switch m.head.Type {
	case wire.MOrder:
		o, err := wire.ParseOrder(m.body)
		if err != nil {
			r.w.t.Error(err)
			return
		}
		switch {
		case o.Action == wire.OrderStop:
			r.stopped = true
		case o.Action == wire.OrderGo && m.head.Epoch == r.epoch && r.waitsGo:
			r.went = m.head.Epoch
		case o.Action == wire.OrderCapture:
			r.capture = o.Generation
		case o.Action != wire.OrderGo:
			r.ordered, r.orderOf = o, m.head.Epoch
		}
	case wire.MBye:
		r.bye = true
	case wire.MKVOK:
		code, err := wire.ParseKVOK(m.body)
		if err != nil {
			r.w.t.Error(err)
		}
		r.heard(m.head.Request, code)
	case wire.MKVValue:
		v, err := wire.ParseKVValue(m.body)
		if err != nil {
			r.w.t.Error(err)
		}
		r.heard(m.head.Request, v.Code)
	case wire.MPaused:
		r.paused = m.head.Request
	case wire.MAttached: // again
		for _, s := range r.notices {
			r.say(session.Sealed{Peer: r.peer, Header: r.head(wire.MSealed, 0), Sealed: s})
		}
		r.notices = nil
	case wire.MRefused:
		x, _ := wire.ParseRefused(m.body)
		r.w.tracef("rank %d, process %d, is refused (%d): %s", r.of, r.pid, x.Code, x.Text)
		if m.head.Request == r.answered.request && r.answered.request != 0 {
			r.heard(m.head.Request, wire.CodeAgain)
			return
		}
		r.stopped = true
	}
}

func (r *rank) fenced(e replica.Epoch) bool { return r.fence() >= e }

func (r *rank) fence() replica.Epoch { return replica.Epoch(atomic.LoadUint64(r.word(atFence))) }

func (r *rank) word(at int) *uint64 { return (*uint64)(unsafe.Pointer(&r.page[at])) }

// main is the program: attach, and train until the last step.
func (r *rank) main() int32 {
	if !r.attach() {
		return 1
	}
	for !r.stopped {
		if r.join() && r.train() {
			return 0
		}
		if r.unloadable {
			return 1
		}
	}
	return 3
}

// attach gets the rank's arena.
func (r *rank) attach() bool {
	r.claims()
	for {
		d := r.m.running()
		if d == nil {
			r.sleep(100 * time.Millisecond)
			continue
		}
		r.peer = d.connect(r.pid, r.start)
		r.say(session.Hello{Peer: r.peer, Header: wire.RankHeader{Type: wire.MHello, Request: r.next()}, Hello: r.hello()})
		m, ok := r.await(wire.MWelcome)
		if ok {
			r.welcome, _ = wire.ParseWelcome(m.body)
			r.say(session.Attach{Peer: r.peer, Header: r.head(wire.MAttach, r.next()), Regions: r.w.regions, Group: r.group})
			if m, ok = r.await(wire.MAttached); ok {
				a, err := wire.ParseAttached(m.body)
				if err == nil {
					r.inc = a.Incarnation
					r.arena, err = shm.Adopt(m.file)
				}
				if err == nil {
					r.page, err = unix.Mmap(int(m.file.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				}
				if err != nil {
					r.w.t.Errorf("rank %d attaches: %v", r.of, err)
					return false
				}
				r.claimed(m.head.Epoch)
				r.disown()
				r.meets.Store(true)
				return true
			}
		}
		if r.stopped {
			return false
		}
	}
}

// disown has the words that an earlier process of the rank left speak of nobody.
func (r *rank) disown() {
	r.do(func() {
		r.step = replica.Word(atomic.LoadUint64(r.word(atStep)))
		if planted.Heir {
			r.held = r.step.Epoch()
			atomic.StoreUint64(r.word(atHolder), uint64(r.inc))
			return
		}
		atomic.StoreUint64(r.word(atHolder), 0)
		atomic.StoreUint64(r.word(atGood), 0)
		atomic.StoreUint64(r.word(atStep), 0)
		r.step, r.held = 0, 0
	})
}

// await waits for a message of a type; false: the daemon has gone, or refuses.
func (r *rank) await(t uint16) (m message, ok bool) {
	for r.peer != nil {
		select {
		case <-r.ctx.Done():
			panic(killed{})
		case <-r.peer.d.ctx.Done():
			r.peer = nil
		case m = <-r.peer.in:
			if m.head.Type == t {
				return m, true
			}
			if r.hear(m); r.stopped {
				return m, false
			}
		}
	}
	return m, false
}

// join is rp_join: it stops, waits for its order and obeys it, until it was let go; false: it is to stop again, or to end.
func (r *rank) join() bool {
	r.asks()
	r.say(session.Stopped{Peer: r.peer, Header: r.head(wire.MStopped, 0), Live: r.step})
	said := time.Now()
	for !r.stopped {
		if e := r.orderOf; e != 0 && e > r.went && e > r.fence() && !(r.ordered.Action == wire.OrderInit && r.initial == e) {
			break
		}
		if g := r.capture; !g.IsZero() {
			r.capture = replica.Generation{}
			r.w.see(sight{moment: living, at: r.m, rank: r.process, on: r.w.phase(g.Epoch, replica.Closed)})
			r.w.tracef("rank %d, process %d: is to capture %v; it stands at %v with %d", r.of, r.pid, g, r.step.Generation(), r.has)
			if (planted.Heir || r.held == g.Epoch) && r.step == replica.PackWord(g.Epoch, g.Step, replica.Idle) {
				r.fill(shm.Slot, g, replica.OfGroup(r.group), r.has)
			}
		}
		r.look(10 * time.Millisecond)
		if time.Since(said) > 500*time.Millisecond {
			said = time.Now()
			r.say(session.Stopped{Peer: r.peer, Header: r.head(wire.MStopped, 0), Live: r.step})
		}
	}
	if r.stopped {
		return false
	}
	o := r.ordered
	r.w.tracef("rank %d, process %d: order %d of epoch %d", r.of, r.pid, o.Action, r.orderOf)
	r.epoch, r.orderOf = r.orderOf, 0
	if o.Action == wire.OrderInit {
		return r.init(o)
	}
	return r.load(o)
}

func (r *rank) init(o wire.Order) bool {
	if r.fenced(r.epoch) {
		return false
	}
	if want := r.w.start(); o.Step != want {
		r.w.failf("P2: rank %d is to begin at step %d, and its job does at %d", r.of, o.Step, want)
	}
	g := replica.Generation{Epoch: r.epoch, Step: o.Step}
	if !r.w.initialises(r.of) {
		r.held = r.epoch
		if r.fill(shm.Ring, g, replica.OfRank(r.of), o.Step) {
			r.initial = r.epoch
		}
		r.held = 0
		r.sleep(time.Millisecond)
		return false
	}
	r.set(o.Step)
	r.has = o.Step
	if r.w.frozen {
		r.fill(shm.Frozen, g, replica.FrozenOf(r.group), 0)
	}
	if r.fill(shm.Slot, g, replica.OfGroup(r.group), r.has) && r.fill(shm.Ring, g, replica.OfRank(r.of), r.has) {
		r.initial = r.epoch
	}
	r.sleep(time.Millisecond)
	return false
}

// set has the words speak of the live state as that of a step.
func (r *rank) set(s replica.Step) {
	r.do(func() {
		atomic.StoreUint64(r.word(atGood), uint64(replica.PackWord(r.epoch, s, 0)))
		r.step = replica.PackWord(r.epoch, s, replica.Idle)
		atomic.StoreUint64(r.word(atStep), uint64(r.step))
		atomic.StoreUint64(r.word(atHolder), uint64(r.inc))
	})
	r.held = r.epoch
}

// load copies what was ordered out of the arena, and holds it against what a job without faults has at that step.
func (r *rank) load(o wire.Order) bool {
	r.w.loads(r, o)
	var bad replica.Epoch
	why := "a place is not sealed"
	r.do(func() {
		atomic.StoreUint64(r.word(atHolder), 0)
		r.held = 0
		for p, of := range map[shm.Place]struct {
			part replica.Part
			root replica.Digest
		}{{Kind: shm.Slot, Index: int(o.Slot)}: {replica.OfGroup(r.group), o.ReplicatedRoot}, {Kind: shm.Ring, Index: int(o.Place)}: {replica.OfRank(r.of), o.PrivateRoot}} {
			info, err := r.arena.Sealed(p)
			if err != nil || info.Root != of.root || info.Generation != o.Generation {
				if bad = r.epoch; r.fenced(bad) {
					return // it stood still meanwhile, and the place is somebody else's
				}
				r.w.failf("P2: rank %d is to load %v of %v from place %v, which holds %v: %v", r.of, of.part, o.Generation, p, info.Generation, err)
				return
			}
			want := r.w.content(of.part, o.Step)
			for i := range info.Digests {
				b, err := r.arena.ReadChunk(p, info.Count, i, nil)
				if err == nil && shm.Hash(b) != info.Digests[i] { // as the C client finds, which verifies what it loads
					bad, why = r.epoch, fmt.Sprintf("chunk %d does not hash to what was sealed", i)
					return
				}
				at, n := replica.ChunkSpan(i, uint64(len(want)), 4096)
				if r.w.dissented() && at == 0 && p.Kind == shm.Slot { // one that no twin has spoken against may be taken
					want[dissentAt] = b[dissentAt]
				}
				if err != nil || string(b) != string(want[at:at+n]) {
					r.w.failf("P2: rank %d loads other bytes than %v had at step %d, in chunk %d: %v", r.of, of.part, o.Step, i, err)
					return
				}
			}
		}
	})
	if bad != 0 {
		r.say(session.Unloadable{Peer: r.peer, Header: r.head(wire.MUnloadable, 0), Text: why})
		r.unloadable = true
		return false
	}
	r.set(o.Step)
	r.has = o.Step
	r.wrong.Store(false)
	r.holds.Store(uint64(r.epoch))
	r.w.see(sight{moment: loaded, at: r.m, rank: r.process, on: r.w.phase(r.epoch, replica.Planned)})
	r.waitsGo = true
	defer func() { r.waitsGo = false }()
	l := wire.Loaded{Generation: o.Generation, ReplicatedRoot: o.ReplicatedRoot, PrivateRoot: o.PrivateRoot}
	r.say(session.Loaded{Peer: r.peer, Header: r.head(wire.MLoaded, 0), Loaded: l})
	told := r.peer
	for r.went != r.epoch {
		if r.fenced(r.epoch) || r.stopped {
			return false
		}
		r.look(10 * time.Millisecond)
		if r.peer != told && r.peer != nil { // libreplicad's caller asks again in the same way: rp_ready in slices
			told = r.peer
			r.say(session.Loaded{Peer: r.peer, Header: r.head(wire.MLoaded, 0), Loaded: l})
		}
	}
	r.goes(o.Generation)
	r.w.went(r)
	return true
}

// train makes steps until the epoch is closed (false) or the job has made its last one and has ended (true).
func (r *rank) train() bool {
	if r.w.goesOn(r.has) && !r.meet() {
		return false
	}
	for r.w.goesOn(r.has) {
		s := r.has + 1
		for until := time.Now().Add(r.w.pass + 6*r.delay()); time.Now().Before(until); {
			r.look(time.Until(until))
		}
		if r.excepts() {
			return false
		}
		if !r.collective(s) || !r.makeStep(s) {
			return false
		}
	}
	return r.leave()
}

// excepts tells whether the process meets an exception, and says so to its daemon.
func (r *rank) excepts() bool {
	if !r.raised() {
		return false
	}
	r.say(session.Fail{Peer: r.peer, Header: r.head(wire.MFail, 0), Text: fmt.Sprintf("an exception in process %d", r.pid)})
	return true
}

// collective waits for the other ranks' gradients; false: the epoch is closed.
func (r *rank) collective(s replica.Step) bool {
	var all <-chan struct{}
	for {
		if r.w.net.reaches(r.m.name) {
			if all == nil {
				all = r.w.arrive(r.epoch, s, r.of)
			}
			select {
			case <-all:
				return true
			default:
			}
		}
		if r.fenced(r.epoch) || r.stopped {
			return false
		}
		r.look(5 * time.Millisecond)
	}
}

// makeStep is the optimizer's window and what comes after it.
func (r *rank) makeStep(s replica.Step) bool {
	g := replica.Generation{Epoch: r.epoch, Step: s}
	r.fill(shm.Ring, g, replica.OfRank(r.of), s) // what an optimizer step does not change is as it will be after it
	before := r.step
	r.move(s, replica.Updating)
	if r.fenced(r.epoch) {
		r.do(func() { r.step = before; atomic.StoreUint64(r.word(atStep), uint64(before)) })
		return false
	}
	r.w.makes(r, s)
	r.sleep(r.delay() / 2)
	r.has = s
	r.move(s, replica.Updated)
	r.move(s, replica.Idle)
	r.do(func() { atomic.StoreUint64(r.word(atGood), uint64(replica.PackWord(r.epoch, s, 0))) })
	if passed := r.lacks; passed.Epoch == r.epoch {
		r.w.passes(r, passed) // again: its daemon may tell so from now on
	}
	r.lacks = replica.Generation{}
	if !r.due(s) || !r.fill(shm.Slot, g, replica.OfGroup(r.group), r.has) {
		r.w.passes(r, g)
		r.lacks = g
	}
	return true
}

func (r *rank) move(s replica.Step, p replica.Phase) {
	r.do(func() {
		r.step = replica.PackWord(r.epoch, s, p)
		atomic.StoreUint64(r.word(atStep), uint64(r.step))
	})
}

// due is rpi_should_capture: whether a step's replicated part is captured.
func (r *rank) due(s replica.Step) bool {
	candidate, committed := r.arena.Candidate(), r.arena.Committed()
	named, done := replica.Step(0), r.w.startOf(r.epoch)
	if committed.Epoch() == r.epoch {
		done = committed.Step()
	}
	if candidate.Epoch() == r.epoch {
		named = candidate.Step()
	}
	every := max(1, replica.Step(atomic.LoadUint64(r.word(atCadence))))
	if s <= done {
		return false
	}
	if named <= done {
		named = done/every*every + every
	}
	return s == named || r.w.slots > 2 && s%max(every, 2) == 0
}

// fill copies a part of the live state, which is that of a step, into a free place and seals it; false: there was none, or the daemon tore it.
func (r *rank) fill(k shm.PlaceKind, g replica.Generation, part replica.Part, of replica.Step) (ok bool) {
	if !planted.Heir && r.held != g.Epoch {
		return false
	}
	man, chunks := r.manifest(k, g, part, of)
	var s *shm.Staging
	var at shm.Place
	var filling atomic.Bool
	defer filling.Store(false)
	r.do(func() {
		for _, p := range r.arena.Places() {
			if p.Kind == k && r.arena.Word(p).State() == replica.SlotFree {
				var err error
				if s, err = r.arena.Stage(p, man); err == nil {
					at = p
					return
				}
				if !errors.Is(err, shm.ErrState) {
					r.w.failf("rank %d can't fill %v: %v", r.of, p, err)
				}
			}
		}
	})
	if s == nil {
		return false
	}
	filling.Store(true)
	if k == shm.Slot {
		r.captures(g)
		r.w.see(sight{moment: capturing, at: r.m, rank: r.process, on: filling.Load})
	}
	for i, b := range chunks {
		var err error
		r.do(func() { err = s.Put(i, b) })
		if err != nil {
			return false
		}
		if i%2 == 1 {
			r.sleep(r.delay() / 4)
		}
	}
	var err error
	r.do(func() { err = s.Copied() })
	if err != nil {
		r.w.tracef("rank %d: %v of %v: %v", r.of, at, g, err)
		return false
	}
	r.sleep(r.delay() / 4)
	r.do(func() { err = s.Seal() })
	if err != nil {
		r.w.tracef("rank %d: %v of %v: %v", r.of, at, g, err)
		return false
	}
	if k == shm.Slot {
		r.w.seals(r, g)
	}
	if k == shm.Slot && r.arena.Candidate().Generation() == g {
		r.w.see(sight{moment: pinning, at: r.m, rank: r.process, on: func() bool { j := r.w.now(); return j != nil && j.Epoch == g.Epoch && j.Committed.Compare(g) < 0 }})
	}
	said := wire.Sealed{Kind: uint32(k), Index: uint32(at.Index), Word: r.arena.Word(at), Generation: g}
	if r.peer == nil || r.peer.d.ctx.Err() != nil { // it may have died since the last look: the next one gets it, as from libreplicad
		r.notices = append(r.notices, said)
	} else {
		r.say(session.Sealed{Peer: r.peer, Header: r.head(wire.MSealed, 0), Sealed: said})
	}
	return true
}

// manifest describes a part of the live state.
func (r *rank) manifest(k shm.PlaceKind, g replica.Generation, part replica.Part, of replica.Step) (replica.Manifest, [][]byte) {
	h := r.arena.Header()
	kind := shm.Place{Kind: k}.PartKind()
	b := r.w.content(part, of)
	if k == shm.Slot && r.wrong.Load() {
		b[dissentAt] ^= 1
	}
	man := replica.Manifest{Cluster: r.w.cluster, Era: r.welcome.Era, Job: r.welcome.Job, Part: part, Generation: g, Rank: r.of, Incarnation: r.inc, Geometry: h.Geometry[kind], Bytes: uint64(len(b)), ChunkBytes: h.ChunkBytes}
	if k == shm.Ring && of == r.w.start() && !r.w.initialises(r.of) {
		man.Flags |= replica.SharedElsewhere
	}
	if k == shm.Slot && r.w.frozen {
		f, _ := r.manifest(shm.Frozen, g, replica.FrozenOf(r.group), 0)
		man.FrozenRoot = f.Root
	}
	var chunks [][]byte
	for i := range replica.ChunkCount(man.Bytes, man.ChunkBytes) {
		at, n := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		chunks, man.Chunks = append(chunks, b[at:at+n]), append(man.Chunks, shm.Hash(b[at:at+n]))
	}
	man.Root = shm.Root(&man)
	return man, chunks
}

// leave is rp_leave; false: the epoch was closed before all had left.
func (r *rank) leave() bool {
	g := replica.Generation{Epoch: r.epoch, Step: r.has}
	last := time.Now().Add(5 * time.Second)
	r.stands(last)
	// A step without its private part, as one that was only loaded, can't be committed: libreplicad does not capture it either.
	for r.sealed(shm.Ring, g) && !r.sealed(shm.Slot, g) && time.Now().Before(last) && !r.fenced(r.epoch) {
		r.fill(shm.Slot, g, replica.OfGroup(r.group), r.has)
		r.look(5 * time.Millisecond)
	}
	r.bye = false
	var told *peer
	for !r.bye {
		if r.fenced(r.epoch) || r.stopped {
			return false
		}
		if r.peer != nil && r.peer != told {
			if told != nil { // the next daemon is to know too that no later step is to be waited for
				r.stands(time.Now().Add(5 * time.Second))
			}
			if told = r.peer; told == nil {
				continue
			}
			r.say(session.Leave{Peer: r.peer, Header: r.head(wire.MLeave, r.next())})
			r.w.leaves(r)
			r.w.see(sight{moment: leaving, at: r.m, rank: r.process, on: r.w.phase(r.epoch, replica.Open)})
		}
		r.look(20 * time.Millisecond)
	}
	return true
}

// stands has the daemon know that the rank makes no further step, and waits for its answer.
func (r *rank) stands(last time.Time) {
	r.say(session.Pause{Peer: r.peer, Header: r.head(wire.MPause, r.next()), Most: 1})
	asked := r.request
	for r.paused != asked && time.Now().Before(last) && !r.fenced(r.epoch) {
		r.look(20 * time.Millisecond)
	}
}

func (r *rank) sealed(k shm.PlaceKind, g replica.Generation) bool {
	for _, p := range r.arena.Places() {
		if info, err := r.arena.Sealed(p); err == nil && p.Kind == k && info.Generation == g {
			return true
		}
	}
	return false
}
