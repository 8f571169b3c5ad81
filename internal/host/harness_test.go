package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/host/rank"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Offsets in the control page, as libreplicad's layout.h has them: what a rank writes, the tests write there.
const (
	atStep   = 512
	atGood   = 576
	atFence  = 640
	atHolder = 1216
	atSlot   = 1536
	atRing   = 2048
	atFrozen = 3072
	wordStep = 64
)

// A rig is a host whose goroutine is the test: events are handled when the test says so, and what it says to the leader
// stays on a link that nobody reads.
type rig struct {
	*Host
	t       *testing.T
	log     *fixture.Lines
	config  Config
	servers *sync.WaitGroup // what ends with the test
	scrubAt time.Time       // as its scrub room has it
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "rn") // t.TempDir's path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithCancel(context.Background())
	var servers sync.WaitGroup
	socket := filepath.Join(dir, "keeper.sock")
	keeper, err := shm.ListenKeeper(socket)
	if err != nil {
		t.Fatal(err)
	}
	servers.Go(func() {
		if err := keeper.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); servers.Wait() })
	k, err := shm.DialKeeper(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	sessions, err := session.Listen(session.Config{Path: filepath.Join(dir, "ranks.sock")})
	if err != nil {
		t.Fatal(err)
	}
	servers.Go(func() { sessions.Run(ctx) }) //nolint:errcheck // it ends with ctx
	d := &rig{t: t, log: &fixture.Lines{}, scrubAt: time.Now()}
	timing := config.Default().Timing
	d.config = Config{Daemon: &config.Config{Node: "n1", StateDir: dir, Socket: filepath.Join(dir, "ranks.sock"), Timing: timing, MemoryMargin: 1 << 20, ScrubRate: 64 << 20}, Cluster: fixture.Cluster,
		Self: replica.Node{Name: "n1", Incarnation: 11, Session: 3}, Journal: journaltest.New(t, d.log), Sessions: sessions, Keeper: k,
		Dial: func(context.Context, []string, replica.NodeName, transfer.Transport) (transfer.Lane, error) {
			return nil, errors.New("no other node runs in this test")
		}}
	d.Host = New(d.config)
	d.servers = &servers
	d.ctx, d.era, d.informed = ctx, 1, true
	d.keeps()
	d.nodes = map[replica.NodeName]replica.Node{"n1": d.self, "n2": {Name: "n2", Incarnation: 22, Session: 1}, "n3": {Name: "n3", Incarnation: 33, Session: 1}}
	d.connect()
	t.Cleanup(func() {
		cancel()
		close(d.ended)
		d.work.Wait()
		d.hands.Mover.Close()
		for _, lj := range d.jobs.all {
			for _, lr := range lj.Ranks {
				lr.Arena.Close()
			}
			for _, a := range lj.Retired {
				a.Close()
			}
			for _, m := range lj.Mirrors.All() {
				m.Arena.Close()
			}
		}
	})
	return d
}

// keeps has the host's custodian work.
func (d *rig) keeps() {
	c, ctx := d.hands.Custody, d.ctx
	d.servers.Go(func() { c.Run(ctx) })
}

// keptBy puts another keeper in the place of the custodian's.
func (d *rig) keptBy(k holding.Vault) {
	d.hands.Custody = holding.NewCustodian(k, nil, d.config.Journal, arenaListPath(d.cfg))
	d.keeps()
}

// connect gives the host a new link.
func (d *rig) connect() {
	near, far := net.Pipe()
	d.t.Cleanup(func() { near.Close(); far.Close() })
	d.link = control.NewLink(near, control.ToLeader)
}

// settled waits until the custodian has done what it was asked for.
func (d *rig) settled() {
	d.t.Helper()
	done := make(chan struct{})
	d.hands.Custody.After(func() { close(done) })
	select {
	case <-done:
	case <-time.After(fixture.Patience):
		d.t.Fatal("the custodian does not end its work")
	}
}

// loadArenas reads the list as it is on disk once all that was asked for is there.
func (d *rig) loadArenas() (holding.List, error) {
	d.t.Helper()
	d.settled()
	return holding.LoadList(arenaListPath(d.cfg))
}

// parked lists the keys of the arenas that the keeper holds once all that was asked for is there.
func (d *rig) parked() map[string]bool {
	d.t.Helper()
	d.settled()
	files, err := d.keeper.All()
	if err != nil {
		d.t.Fatal(err)
	}
	keys := map[string]bool{}
	for key, f := range files {
		f.Close()
		keys[key] = true
	}
	return keys
}

// says takes what the host has said to the leader since.
func (d *rig) says() (msgs []any) {
	d.t.Helper()
	for frame := d.link.Take(); frame != nil; frame = d.link.Take() {
		k, b, err := wire.Read(bytes.NewReader(frame), control.MaxLinkFrame)
		if err != nil {
			d.t.Fatal(err)
		}
		msg, err := control.Decode(control.ToLeader, k, b)
		if err != nil {
			d.t.Fatalf("kind %d: %v", k, err)
		}
		msgs = append(msgs, msg)
	}
	return msgs
}

// views tells the host a whole state, as a leader does.
func (d *rig) views(v control.View) {
	if v.Nodes == nil {
		v.Nodes = d.nodes
	}
	d.leaderSays(v)
	d.leaderSays(control.Change{After: v.Index, Index: v.Index, Era: v.Era})
}

// until handles events until cond holds.
func (d *rig) until(what string, cond func() bool) {
	d.t.Helper()
	late := time.After(fixture.Patience)
	for !cond() {
		select {
		case ev := <-d.in:
			d.handle(ev)
		case ev := <-d.sessions.Events():
			d.handleSession(ev)
		case <-late:
			d.t.Fatalf("waited %v for %s", fixture.Patience, what)
		}
	}
}

func (d *rig) put(record *replica.Job) *job.Job {
	lj := job.New(record, d.jobs.at)
	d.jobs.all[record.ID] = lj
	return lj
}

func (d *rig) arena(spec shm.Spec) *holding.Arena {
	d.t.Helper()
	if spec.Job == (replica.JobID{}) {
		spec.Job = fixture.JobID
	}
	spec.Cluster, spec.Era, spec.ChunkBytes, spec.Margin = fixture.Cluster, 1, 4096, 1<<20
	a, err := shm.Create(spec)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { a.Close() })
	ref := holding.New(a, fmt.Sprintf("test-%d-%d", spec.Rank, rand.Uint64()), d.hands.Unmap)
	d.hands.Custody.Put(ref.Key(), a.File())
	return ref
}

// attach makes this node the holder of a rank, with the incarnation that the job names. There is no process.
func (d *rig) attach(lj *job.Job, r replica.Rank) *rank.Rank {
	d.t.Helper()
	a := d.arena(shm.Spec{Job: lj.Job.ID, Rank: r, Geometry: fixture.Geometry(d.t, false)})
	lr := rank.New(r, lj.Job.Ranks[r].Incarnation, a, rank.Process{PID: -1 - int(r)})
	lj.Ranks[r] = lr
	lr.Arena.SetOwner(lr.Incarnation, 0, 0)
	d.write(lr.Arena, atHolder, uint64(lr.Incarnation)) // it has had state
	return lr
}

// mirrorOf makes this node a mirror: of a rank's private part, or of a group's replicated one.
func (d *rig) mirrorOf(lj *job.Job, part replica.Part, rank replica.Rank, frozen bool) *holding.Arena {
	spec := shm.Spec{Job: lj.Job.ID, Rank: rank, Geometry: fixture.Geometry(d.t, frozen), Mirror: true}
	if part.Kind == replica.ReplicatedPart {
		spec.Slots, spec.Ring = 4, -1
	}
	a := d.arena(spec)
	d.mirrors.Adopt(lj.Job.ID, part, a)
	d.turn(d.mirrors, time.Now())
	return a
}

func slot(i int) shm.Place { return shm.Place{Kind: shm.Slot, Index: i} }
func ring(i int) shm.Place { return shm.Place{Kind: shm.Ring, Index: i} }

var frozenPlace = shm.Place{Kind: shm.Frozen}

// manifestFor describes random bytes as a part that lies in p, and gives them in chunks.
func manifestFor(a *holding.Arena, p shm.Place, g replica.Generation, seed uint64) (replica.Manifest, [][]byte) {
	h := a.Header()
	man := replica.Manifest{Cluster: fixture.Cluster, Era: 1, Job: fixture.JobID, Part: replica.Part{Kind: p.PartKind(), Index: uint32(a.Spec().Rank)}, Generation: g, Rank: a.Spec().Rank, Incarnation: 4,
		Geometry: h.Geometry[p.PartKind()], Bytes: [...]uint64{h.ReplicatedBytes, h.PrivateBytes, h.FrozenBytes}[p.PartKind()], ChunkBytes: h.ChunkBytes}
	if p.Kind == shm.Slot && h.FrozenBytes > 0 {
		man.FrozenRoot = frozenRoot(a)
	}
	rng := rand.New(rand.NewPCG(seed, uint64(p.Kind)))
	var chunks [][]byte
	for i := range replica.ChunkCount(man.Bytes, man.ChunkBytes) {
		_, n := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		b := make([]byte, n)
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		chunks, man.Chunks = append(chunks, b), append(man.Chunks, shm.Hash(b))
	}
	man.Root = shm.Root(&man)
	return man, chunks
}

// frozenRoot is the root of what the tests put into frozen areas.
func frozenRoot(a *holding.Arena) replica.Digest {
	man, _ := manifestFor(a, frozenPlace, fixture.Gen(1, 0), 99)
	return man.Root
}

// stage begins to write a part into a place.
func (d *rig) stage(a *holding.Arena, p shm.Place, g replica.Generation, seed uint64, flags ...replica.PartFlags) *shm.Staging {
	d.t.Helper()
	man, chunks := manifestFor(a, p, g, seed)
	for _, f := range flags {
		man.Flags |= f
	}
	s, err := a.Stage(p, man)
	if err != nil {
		d.t.Fatal(err)
	}
	for i, b := range chunks {
		if err := s.Put(i, b); err != nil {
			d.t.Fatal(err)
		}
	}
	return s
}

// seal does what a rank does to seal a part; equal seeds make equal bytes.
func (d *rig) seal(a *holding.Arena, p shm.Place, g replica.Generation, seed uint64) shm.Info {
	d.t.Helper()
	if err := d.stage(a, p, g, seed).Seal(); err != nil {
		d.t.Fatal(err)
	}
	info, err := a.Sealed(p)
	if err != nil {
		d.t.Fatal(err)
	}
	return info
}

// both seals a rank's replicated and private part of one generation, in place i of each.
func (d *rig) both(a *holding.Arena, i int, g replica.Generation) {
	d.t.Helper()
	d.seal(a, slot(i), g, uint64(g.Step))
	d.seal(a, ring(i), g, uint64(g.Step))
}

func (d *rig) write(a *holding.Arena, off int64, v uint64) {
	d.t.Helper()
	if _, err := a.File().WriteAt(binary.LittleEndian.AppendUint64(nil, v), off); err != nil {
		d.t.Fatal(err)
	}
}

func (d *rig) word(a *holding.Arena, off int64) uint64 {
	d.t.Helper()
	var b [8]byte
	if _, err := a.File().ReadAt(b[:], off); err != nil {
		d.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(b[:])
}

// setState writes a place's state, as a rank may.
func (d *rig) setState(a *holding.Arena, p shm.Place, s replica.SlotState) {
	d.t.Helper()
	off := map[shm.PlaceKind]int64{shm.Slot: atSlot, shm.Ring: atRing, shm.Frozen: atFrozen}[p.Kind] + int64(wordStep*p.Index)
	d.write(a, off, uint64(replica.PackSlot(a.Word(p).Count(), s)))
	if got := a.Word(p).State(); got != s {
		d.t.Fatalf("%v is %v after %v was written: the layout has moved", p, got, s)
	}
}

// live says where the training thread is and how far the rank vouches for it.
func (d *rig) live(lr *rank.Rank, e replica.Epoch, s replica.Step, p replica.Phase) {
	d.write(lr.Arena, atStep, uint64(replica.PackWord(e, s, p)))
	d.write(lr.Arena, atGood, uint64(replica.PackWord(e, s, 0)))
}

// staged lists the places that the daemon itself writes to; held those that somebody reads.
func staged(a *holding.Arena) []shm.Place {
	return slices.DeleteFunc(slices.Clone(a.Places()), func(p shm.Place) bool { return !a.Staged(p) })
}

func held(a *holding.Arena) []shm.Place {
	return slices.DeleteFunc(slices.Clone(a.Places()), func(p shm.Place) bool { return a.Readers(p) == 0 })
}

// states lists the states of the places of one kind, for comparison.
func states(a *holding.Arena, k shm.PlaceKind) (out []replica.SlotState) {
	for _, p := range a.Places() {
		if p.Kind == k {
			out = append(out, a.Word(p).State())
		}
	}
	return out
}

// process is a child that does nothing: one that may be killed in a rank's place.
type process struct {
	cmd   *exec.Cmd
	pid   int
	start uint64
	in    io.Closer
}

func (d *rig) process() *process {
	d.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envIdle+"=1")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	p := &process{cmd: cmd, pid: cmd.Process.Pid, in: in}
	d.t.Cleanup(func() { in.Close(); cmd.Wait() }) //nolint:errcheck // killed, or at the end of its input
	if p.start, err = session.StartTime(p.pid); err != nil {
		d.t.Fatal(err)
	}
	return p
}

// rankEnd is the other end of a session: what a rank reads.
type rankEnd struct {
	t    *testing.T
	conn *net.UnixConn
}

// session connects a rank of that name to the daemon's socket. Its process is this one: never give it to something that kills.
func (d *rig) session(rank replica.Rank) (session.Peer, *rankEnd) {
	d.t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.cfg.Socket, Net: "unixpacket"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	hello := wire.Hello{ABI: wire.RankABI, Rank: rank, World: 2, Job: "job"}
	if _, err := conn.Write(wire.AppendRank(nil, wire.RankHeader{Type: wire.MHello, Request: 1}, hello.Append(nil))); err != nil {
		d.t.Fatal(err)
	}
	select {
	case ev := <-d.sessions.Events():
		return ev.(session.Hello).Peer, &rankEnd{d.t, conn}
	case <-time.After(fixture.Patience):
		d.t.Fatal("no session")
		return nil, nil
	}
}

// reads returns the next message to the rank.
func (r *rankEnd) reads() (wire.RankHeader, []byte) {
	r.t.Helper()
	r.conn.SetReadDeadline(time.Now().Add(fixture.Patience)) //nolint:errcheck // a dead socket fails the read
	b := make([]byte, wire.MaxRankMessage)
	n, err := r.conn.Read(b)
	if err != nil {
		r.t.Fatalf("the rank reads: %v", err)
	}
	h, body, err := wire.ParseRank(b[:n])
	if err != nil {
		r.t.Fatal(err)
	}
	return h, body
}

// ordered returns the next message, which must be an order.
func (r *rankEnd) ordered() (replica.Epoch, wire.Order) {
	r.t.Helper()
	h, body := r.reads()
	if h.Type != wire.MOrder {
		r.t.Fatalf("the rank reads message %d, want an order", h.Type)
	}
	o, err := wire.ParseOrder(body)
	if err != nil {
		r.t.Fatal(err)
	}
	return h.Epoch, o
}

// quiet fails if anything was sent to the rank before a refusal that the test sends last.
func (r *rankEnd) quiet(p session.Peer) {
	r.t.Helper()
	const mark = 0xf00d
	p.Refuse(mark, wire.CodeState, "the mark")
	if h, _ := r.reads(); h.Type != wire.MRefused || h.Request != mark {
		r.t.Errorf("the rank was sent message %d, want nothing", h.Type)
	}
}

// calls is a request that a test makes up.
type calls func()

func (fn calls) serve(*Host) { fn() }

// restored tells whether a rank's parts of the newest plan lie in its arena.
func (d *rig) restored(lj *job.Job, lr *rank.Rank) bool {
	_, ok := d.restores.Done(lj.Job.ID, lj.Job.Epoch, lr.Rank)
	return ok
}

// What a job does in its turns, one by one.
func (d *rig) reconcile(j *job.Job)                              { j.Reconcile() }
func (d *rig) report(j *job.Job)                                 { j.Report() }
func (d *rig) fence(j *job.Job)                                  { job.Fence(j) }
func (d *rig) settle(j *job.Job) bool                            { return job.Settle(j) }
func (d *rig) reap(j *job.Job)                                   { job.Reap(j) }
func (d *rig) supersede(j *job.Job)                              { job.Supersede(j) }
func (d *rig) peersLost(j *job.Job)                              { job.PeersLost(j) }
func (d *rig) pulses(j *job.Job)                                 { job.Pulses(j) }
func (d *rig) pollProgress(j *job.Job)                           { job.PollProgress(j) }
func (d *rig) killHung(j *job.Job)                               { job.KillHung(j) }
func (d *rig) order(j *job.Job)                                  { job.Order(j) }
func (d *rig) retain(j *job.Job)                                 { j.Retain() }
func (d *rig) answerCandidate(j *job.Job)                        { j.AnswerCandidate() }
func (d *rig) rankDied(j *job.Job, lr *rank.Rank)                { job.Died(j, lr) }
func (d *rig) sealed(j *job.Job, lr *rank.Rank, p shm.Place)     { job.Sealed(j, lr, p) }
func (d *rig) checkInitial(j *job.Job, lr *rank.Rank)            { job.CheckInitial(j, lr) }
func (d *rig) paused(j *job.Job, lr *rank.Rank, m time.Duration) { job.Paused(j, lr, m) }
func (d *rig) stepsOf(j *job.Job) (control.StepMS, bool)         { return j.Steps() }
func (d *rig) holder() replica.Holder                            { return d.self.Holder() }

func (d *rig) failed(j *job.Job, lr *rank.Rank, ev session.Fail) {
	d.t.Helper()
	was := lr.Peer
	lr.Peer = &mute{id: 1}
	if !j.Hears(lr.Peer, ev) {
		d.t.Fatal("nobody hears the rank")
	}
	lr.Peer = was
}

func (d *rig) mirrorArena(ctx context.Context, id replica.JobID, r replica.Rank, man replica.Manifest) (*holding.Arena, error) {
	return handsOwner{d.Host}.Arena(ctx, id, r, man)
}
