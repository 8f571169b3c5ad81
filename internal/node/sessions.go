package node

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// attaching is a process on its way from HELLO to its arena. It waits where waiting helps (no leader, the rank's fault
// not applied yet) and is refused where it does not.
type attaching struct {
	peer     *session.Peer
	hello    wire.Hello
	helloReq uint32
	attach   uint32 // request of ATTACH; 0: not sent yet
	welcomed bool
	geometry replica.Geometry
	request  uint64 // of the claim under way; 0: none
	claim    replica.Claim
	creating bool      // its arena is being made, or parked
	arena    *arenaRef // being parked for it; its predecessor's, or nobody's yet
	granted  replica.Incarnation
}

func (m *member) handleSession(ev session.Event) {
	switch ev := ev.(type) {
	case session.Hello:
		if ev.File != nil {
			m.reattach(ev)
			return
		}
		a := &attaching{peer: ev.Peer, hello: ev.Hello, helloReq: ev.Header.Request}
		m.attaching[ev.Peer.ID()] = a
		m.advance(a)
	case session.Attach:
		a := m.attaching[ev.Peer.ID()]
		if a == nil || !a.welcomed {
			ev.Peer.Refuse(ev.Header.Request, wire.CodeState, "attach before hello was answered")
			return
		}
		g, err := replica.NewGeometry(ev.Regions)
		if err != nil {
			m.refuse(a, ev.Header.Request, wire.CodeInvalid, err.Error())
			return
		}
		a.geometry, a.attach = g, ev.Header.Request
		if ev.Group != replica.NoGroup {
			a.hello.Group = ev.Group
		}
		m.advance(a)
	case session.Sealed:
		m.heard(ev.Peer, ev)
	case session.Stopped:
		m.heard(ev.Peer, ev)
	case session.Loaded:
		m.heard(ev.Peer, ev)
	case session.Fail:
		m.heard(ev.Peer, ev)
	case session.Reject:
		m.heard(ev.Peer, ev)
	case session.Pause:
		m.heard(ev.Peer, ev)
	case session.Leave:
		m.heard(ev.Peer, ev)
	case session.KV:
		m.kv(ev)
	case session.Scope:
		m.scope(ev)
	case session.RunHello:
		m.runHello(ev)
	case session.RunExited:
		m.runExited(ev)
	case session.RunRunning:
		m.runRunning(ev.Peer, ev.RunExited.Rank)
	case session.Gone:
		m.peerGone(ev.Peer)
	case session.Exited:
		for _, lj := range m.jobs {
			for _, lr := range lj.ranks {
				if lr.pid == ev.PID && lr.start == ev.StartTime { // one process may hold several ranks, of several jobs
					m.rankDied(lj, lr)
				}
			}
		}
	}
}

// heard takes what a rank says to its job; where that is not known yet it waits with the arena.
func (m *member) heard(p *session.Peer, ev session.Event) {
	if lj, lr := m.rankOf(p); lr != nil {
		m.rankSays(lj, lr, ev)
		return
	}
	for _, ref := range m.orphans {
		if ref.peer == p {
			ref.keepSaid(ev)
			return
		}
	}
}

func (m *member) rankSays(lj *localJob, lr *localRank, ev session.Event) {
	switch ev := ev.(type) {
	case session.Sealed:
		m.sealed(lj, lr, shm.Place{Kind: shm.PlaceKind(ev.Sealed.Kind), Index: int(ev.Sealed.Index)})
	case session.Stopped:
		if !lr.stopped {
			lr.stopped, lr.stoppedAt = true, time.Now()
		}
		if lj.job.Phase == replica.Open && lr.loaded == lj.job.Epoch {
			lr.gone = lj.job.Epoch // it was let go, by this daemon or the one before: it is not to be let go once more, but waits for the fault
		}
		m.freeTorn(lr)
		lr.left, lr.leaveTo = false, 0 // a fault before all have left brings it back
		lr.ordered = orderKey{}
		m.reconcile(lj)
	case session.Loaded:
		m.loaded(lj, lr, ev)
	case session.Fail:
		m.send(kindEvidence, evidence{lj.job.ID, replica.Fault{Epoch: ev.Header.Epoch, Kind: replica.Exception, Rank: lr.rank, Incarnation: lr.incarnation, Detail: ev.Text}})
	case session.Reject:
		lr.rejected = ev.Header.Epoch
		m.send(kindReject, rejected{lj.job.ID, ev.Header.Epoch, lr.rank, lr.incarnation, ev.Text})
	case session.Pause:
		m.paused(lj, lr, ev.Most)
	case session.Leave:
		lr.left, lr.leaveTo = true, ev.Header.Request
		m.reconcile(lj)
	}
}

func (m *member) refuse(a *attaching, req uint32, c int32, text string) {
	m.log.refusedRank(a.hello.Job, a.hello.Rank, a.peer.PID(), text)
	for _, l := range m.launchers {
		if l.hello.Job == a.hello.Job {
			l.refused[a.hello.Rank] = text
		}
	}
	a.peer.Refuse(req, c, text)
	delete(m.attaching, a.peer.ID())
	delete(m.claims, a.request)
	m.kvGone(a.peer)
}

// serveAttaching tries again whoever waits, after anything that may have cleared the way.
func (m *member) serveAttaching() {
	for _, a := range m.attaching {
		m.advance(a)
	}
}

// advance takes a process as far towards its arena as the job's state allows now.
func (m *member) advance(a *attaching) {
	req := a.helloReq
	if a.attach != 0 {
		req = a.attach
	}
	if a.hello.ABI != wire.RankABI {
		m.refuse(a, req, wire.CodeVersion, fmt.Sprintf("libreplicad speaks version %d of the rank protocol, this daemon %d: use the library of this daemon's release", a.hello.ABI, wire.RankABI))
		return
	}
	if !m.informed {
		return // no leader reached since start: nothing can be judged
	}
	lj := m.jobNamed(a.hello.Job)
	if lj == nil {
		if m.launching(a.hello.Job) {
			return // a launcher here is creating it
		}
		m.refuse(a, req, wire.CodeRefused, fmt.Sprintf("no job %q: start it with `replicad run --job %s ...`", a.hello.Job, a.hello.Job))
		return
	}
	job := lj.job
	rank := replica.Rank(a.hello.Rank)
	if text := otherPlace(job, a); text != "" {
		m.refuse(a, req, wire.CodeRefused, text)
		return
	}
	if lr := lj.ranks[rank]; lr != nil && lr.alive {
		if lr.pid == a.peer.PID() && lr.start == a.peer.StartTime() {
			m.refuse(a, req, wire.CodeRefused, fmt.Sprintf("process %d has attached as rank %d of job %q already: use one handle", lr.pid, rank, job.Name))
			return
		}
		if !lr.superseded(job) {
			m.refuse(a, req, wire.CodeRefused, fmt.Sprintf("rank %d of job %q is held by live process %d on this node: stop it first, or start another rank", rank, job.Name, lr.pid))
		}
		return
	}
	if c := job.Ranks[rank]; c.Incarnation != 0 && c.Node != m.self.Name && !vacated(job, rank) {
		m.refuse(a, req, wire.CodeRefused, fmt.Sprintf("rank %d of job %q is held by incarnation %d on node %s: it is not free", rank, job.Name, c.Incarnation, c.Node))
		return
	}
	if !a.welcomed {
		a.welcomed = true
		m.callers[a.peer.ID()] = caller{job.ID, rank, a.hello.Nonce}
		a.peer.Send(wire.RankHeader{Type: wire.MWelcome, Request: a.helloReq}, //nolint:errcheck // a dead peer is Gone
			wire.Welcome{ABI: wire.RankABI, Rank: a.hello.Rank, Cluster: m.cluster, Job: job.ID, Era: m.era, ChunkBytes: chunkBytes(job)}.Append(nil))
		return
	}
	m.claimFor(lj, a)
}

// otherPlace says how the place that a process takes itself to have is none of the job. Empty: it may be one.
func otherPlace(job *replica.Job, a *attaching) string {
	h := a.hello
	want, group := "none", "a group that it has not named"
	if uint32(h.Rank) < job.Layout.World {
		want = fmt.Sprint(job.Layout.Groups[h.Rank])
	}
	if h.Group != replica.NoGroup {
		group = fmt.Sprintf("group %d", h.Group)
	}
	switch {
	case h.World != job.Layout.World || want == "none", h.Group != replica.NoGroup && job.Naming == nil && h.Group != job.Layout.Groups[h.Rank]:
		return fmt.Sprintf("rank %d of %d in %s: job %q has %d ranks, and that rank's group is %s", h.Rank, h.World, group, job.Name, job.Layout.World, want)
	case h.Group == replica.NoGroup && a.attach != 0:
		return fmt.Sprintf("rank %d of job %q does not say its replica group: name it before attaching (rp_set_group; replicad.Session finds it in the model)", h.Rank, job.Name)
	}
	return ""
}

// claiming tells whether a process of this node is on its way from a claim of the rank to its arena.
func (m *member) claiming(lj *localJob, rank replica.Rank) bool {
	for _, a := range m.attaching {
		if a.hello.Job == lj.job.Name && replica.Rank(a.hello.Rank) == rank && (a.request != 0 || a.creating) {
			return true
		}
	}
	return false
}

// superseded tells whether a newer incarnation holds the rank.
func (lr *localRank) superseded(job *replica.Job) bool {
	return job.Ranks[lr.rank].Incarnation > lr.incarnation
}

// claimFor asks Raft for the rank, where it can be had now.
func (m *member) claimFor(lj *localJob, a *attaching) {
	job, rank := lj.job, replica.Rank(a.hello.Rank)
	if a.attach == 0 || a.request != 0 || a.creating || job.Epoch == 0 || job.Epoch <= job.ClosedEpoch && job.Phase == replica.Opening {
		return
	}
	if job.Phase != replica.Opening && job.Phase != replica.Closed || job.Ranks[rank].Incarnation != 0 && !vacated(job, rank) {
		return // the fault that frees the rank is on its way
	}
	if lr := lj.ranks[rank]; lr != nil && lr.finishing > 0 {
		return // the arena is still being read in the dead process's name
	}
	if a.geometry.PrivateBytes > privateCap(job) {
		big := slices.MaxFunc(a.geometry.Regions, func(x, y replica.Region) int {
			return int(int64(x.Bytes)*int64(x.Kind)) - int(int64(y.Bytes)*int64(y.Kind))
		})
		m.refuse(a, a.attach, wire.CodeRefused, fmt.Sprintf("private regions have %d bytes, the cap is %d; the largest is %q with %d: make it replicated if it is equal across the group, or give `replicad run --private-cap-mb` more when the job is created",
			a.geometry.PrivateBytes, privateCap(job), big.Name, big.Bytes))
		return
	}
	kept, known := m.durableGeometry(lj, rank)
	if !known {
		return // it is being read
	}
	if text := lj.otherState(rank, replica.GroupID(a.hello.Group), a.geometry, kept); text != "" {
		m.refuse(a, a.attach, wire.CodeRefused, text)
		return
	}
	a.request = m.nextRequest()
	a.claim = replica.Claim{Job: job.ID, Rank: rank, Expect: job.Ranks[rank].Incarnation, Holder: m.holder(), Group: replica.GroupID(a.hello.Group), Geometry: shm.GeometryDigest(a.geometry, replica.ReplicatedPart), Nonce: claimNonce(a.hello.Nonce)}
	m.claims[a.request] = a
	m.send(kindClaim, claimRequest{a.request, a.claim})
}

func claimNonce(n uint64) uint64 {
	if n == 0 {
		var b [8]byte
		rand.Read(b[:]) //nolint:errcheck // never fails
		n = binary.LittleEndian.Uint64(b[:])
	}
	return n
}

// faulted tells whether a rank's claim is free for another process: its process or node is gone, or it hangs, for which the leader
// offers its rank elsewhere. After an exception the same process may go on.
func faulted(job *replica.Job, rank replica.Rank) bool {
	c := job.Ranks[rank]
	for _, f := range job.Faults {
		if (f.Kind.IsCondition() || f.Kind == replica.Hang) && (!f.OfNode() && f.Rank == rank && f.Incarnation == c.Incarnation || f.OfNode() && f.Node == c.Node && f.NodeIncarnation == c.NodeIncarnation) {
			return true
		}
	}
	return false
}

// vacated tells whether a rank is to be held by another process: who holds it is lost, has to go, or its node is kept out.
func vacated(job *replica.Job, rank replica.Rank) bool {
	c := job.Ranks[rank]
	return faulted(job, rank) || slices.Contains(job.Quarantined, c.Node) || slices.ContainsFunc(job.Faults, func(f replica.Fault) bool {
		return recovery.FirstRung(f.Kind) >= recovery.Process && (!f.OfNode() && f.Rank == rank && f.Incarnation == c.Incarnation || f.OfNode() && f.Node == c.Node && f.NodeIncarnation == c.NodeIncarnation)
	})
}

func (m *member) claimReplied(r claimReply) {
	a := m.claims[r.ID]
	if a == nil {
		return
	}
	delete(m.claims, r.ID)
	a.request = 0
	lj := m.jobs[a.claim.Job]
	if m.attaching[a.peer.ID()] != a || lj == nil {
		return // the process is gone; its claim is judged dead by the report without it
	}
	if r.Refused != "" {
		if !r.Retry {
			m.refuse(a, a.attach, wire.CodeRefused, r.Refused+m.otherThanPeers(lj, a.claim, a.geometry))
		}
		return // another view is coming, and with it another try
	}
	a.granted = r.Incarnation
	m.makeArena(lj, a)
}

// arenaReady is the end of making an arena.
type arenaReady struct {
	attaching *attaching
	job       replica.JobID
	arena     *shm.Arena
	err       error
}

// arenaParked says that an arena is with the keeper, and on the list with the process that is to have it: it may be handed out.
type arenaParked struct {
	attaching *attaching
	job       replica.JobID
	fresh     bool // made for this process; else its dead predecessor's, and still in its place
}

// makeArena passes on the arena of the rank's dead predecessor where it fits, and makes a fresh one beside the member where not.
func (m *member) makeArena(lj *localJob, a *attaching) {
	rank := replica.Rank(a.hello.Rank)
	if lr := lj.ranks[rank]; lr != nil {
		if sameGeometry(lr.arena.Geometry(), a.geometry) {
			m.park(lj, a, lr.arena, false)
			return
		}
		lj.retired = append(lj.retired, lr.arena)
		delete(lj.ranks, rank)
	}
	for _, ref := range lj.retired { // retired since the view of this very claim came before its answer
		_, pid, start := ref.Owner()
		if ref.Spec().Rank == rank && sameGeometry(ref.Geometry(), a.geometry) && !session.Alive(int(pid), start) {
			m.park(lj, a, ref, false)
			return
		}
	}
	a.creating = true
	job := lj.job
	spec := shm.Spec{Cluster: m.cluster, Era: m.era, Job: job.ID, Rank: rank, Geometry: a.geometry, ChunkBytes: chunkBytes(job), Slots: slotsOf(job), Margin: uint64(m.cfg.MemoryMargin)}
	ev := arenaReady{attaching: a, job: job.ID}
	m.work.Go(func() {
		ev.arena, ev.err = m.create(spec)
		m.post(ev)
	})
}

func (m *member) arenaReady(ev arenaReady) {
	a, lj := ev.attaching, m.jobs[ev.job]
	a.creating = false
	if ev.err != nil {
		if m.attaching[a.peer.ID()] != a || lj == nil {
			return
		}
		code := int32(wire.CodeSystem)
		if errors.As(ev.err, new(*shm.TooLittleMemory)) {
			code = wire.CodeNoMemory
		}
		m.refuse(a, a.attach, code, ev.err.Error())
		m.send(kindEvidence, evidence{ev.job, replica.Fault{Epoch: lj.job.Epoch, Kind: replica.ProcessDead, Rank: replica.Rank(a.hello.Rank), Incarnation: a.granted, Detail: ev.err.Error()}})
		return
	}
	if m.attaching[a.peer.ID()] != a || lj == nil {
		m.unmap(ev.arena) // never handed out
		return
	}
	ref := m.newArenaRef(ev.arena, arenaKey(ev.job, a.granted, replica.Rank(a.hello.Rank), false))
	m.custody.put(ref.key, ref.Arena)
	m.park(lj, a, ref, true)
}

// park has the arena of a process put where it outlives the daemon. The list on disk names the process before that has the
// arena: a daemon that starts again must know whom to wait for. A predecessor's arena stays in its place meanwhile, and counts there.
func (m *member) park(lj *localJob, a *attaching, ref *arenaRef, fresh bool) {
	a.creating, a.arena = true, ref
	ref.SetOwner(a.granted, uint64(a.peer.PID()), a.peer.StartTime())
	m.saveArenas()
	ev := arenaParked{a, lj.job.ID, fresh}
	m.custody.after(func() { m.post(ev) })
}

func (m *member) arenaParked(ev arenaParked) {
	a, lj, ref := ev.attaching, m.jobs[ev.job], ev.attaching.arena
	a.creating, a.arena = false, nil
	there := lj != nil && lj.holdsDead(ref)
	switch {
	case m.attaching[a.peer.ID()] == a && lj != nil && (ev.fresh || there):
		m.handOut(lj, a, ref)
	case ev.fresh:
		m.forget(ref) // the process is gone
	case m.attaching[a.peer.ID()] == a && lj != nil && lj.job.Phase != replica.Ended:
		m.makeArena(lj, a) // another job's rules gave the predecessor's up
	default:
		m.saveArenas() // its place is its predecessor's again
		m.serveAttaching()
	}
}

// holdsDead tells whether an arena lies here as that of a dead process.
func (lj *localJob) holdsDead(ref *arenaRef) bool {
	lr := lj.ranks[ref.Spec().Rank]
	return lr != nil && lr.arena == ref && !lr.alive || slices.Contains(lj.retired, ref)
}

// handOut gives a parked arena to its process.
func (m *member) handOut(lj *localJob, a *attaching, ref *arenaRef) {
	delete(m.attaching, a.peer.ID())
	rank := replica.Rank(a.hello.Rank)
	lj.retired = slices.DeleteFunc(lj.retired, func(r *arenaRef) bool { return r == ref })
	if old := lj.ranks[rank]; old != nil && old.arena != ref {
		lj.retired = append(lj.retired, old.arena)
	}
	lr := &localRank{rank: rank, incarnation: a.granted, arena: ref, peer: a.peer, pid: a.peer.PID(), start: a.peer.StartTime(), alive: true, sealedAt: map[replica.Generation]time.Time{}, pushed: map[pushKey]pushState{}}
	lj.ranks[rank] = lr
	m.rankAttached(lj.job.Name, rank)
	ref.RaiseFence(max(lj.fenced, lj.job.ClosedEpoch))
	ref.SetCommitted(lj.job.Position)
	ref.SetCandidate(lj.candidate.Position)
	ref.SetCadence(cadence(lj.job))
	h := wire.RankHeader{Type: wire.MAttached, Request: a.attach, Epoch: lj.job.Epoch, Incarnation: a.granted}
	hd := ref.Header()
	body := wire.Attached{ArenaBytes: hd.ArenaBytes, Incarnation: a.granted, Slots: hd.Slots, Ring: hd.Ring, Fence: lj.fenced, Job: lj.job.ID}.Append(nil)
	if err := a.peer.SendFile(h, body, ref.File()); err != nil {
		m.log.failed("attach", ref.key, err.Error())
	}
	m.log.claimed(lj.job, lr, m.self.Name)
	if err := m.sessions.Watch(lr.pid, lr.start); err != nil {
		m.log.failed("watch", ref.key, err.Error())
	}
	m.reconcile(lj)
}

// reattach takes back a rank whose daemon was away.
func (m *member) reattach(ev session.Hello) {
	defer ev.File.Close()
	for _, lj := range m.jobs {
		for _, lr := range lj.ranks {
			if lr.pid == ev.Peer.PID() && lr.start == ev.Peer.StartTime() && lr.rank == ev.Hello.Rank && lj.job.Name == ev.Hello.Job {
				m.attachAgain(lj, lr, ev)
				return
			}
		}
	}
	for _, ref := range m.orphans { // no leader reached yet: a live rank is taken back all the same (P7)
		if ref.owner.pid == ev.Peer.PID() && ref.owner.start == ev.Peer.StartTime() && ref.Spec().Rank == ev.Hello.Rank {
			inc, _, _ := ref.Owner()
			ref.peer, ref.owner.proven = ev.Peer, true
			m.attached(ev, ref, inc, 0)
			return
		}
	}
	if m.adoptOffered(ev) {
		return
	}
	ev.Peer.Refuse(ev.Header.Request, wire.CodeStopped, fmt.Sprintf("no arena of job %q, rank %d belongs to process %d here: the rank was taken over or the job has ended", ev.Hello.Job, ev.Hello.Rank, ev.Peer.PID()))
}

func (m *member) attachAgain(lj *localJob, lr *localRank, ev session.Hello) {
	lr.peer, lr.alive, lr.ordered = ev.Peer, true, orderKey{}
	if lr.unproven {
		lr.unproven = false
		m.saveArenas()
	}
	m.attached(ev, lr.arena, lr.incarnation, lj.job.Epoch)
	m.log.reattached(lj.job, lr)
	m.reconcile(lj)
}

// attached answers a rank that came back: it has the descriptor already.
func (m *member) attached(ev session.Hello, ref *arenaRef, inc replica.Incarnation, epoch replica.Epoch) {
	m.callers[ev.Peer.ID()] = caller{ref.Spec().Job, ev.Hello.Rank, ev.Hello.Nonce}
	hd := ref.Header()
	body := wire.Attached{ArenaBytes: hd.ArenaBytes, Incarnation: inc, Slots: hd.Slots, Ring: hd.Ring, Fence: ref.Fence(), Job: ref.Spec().Job}.Append(nil)
	ev.Peer.Send(wire.RankHeader{Type: wire.MAttached, Request: ev.Header.Request, Epoch: epoch, Incarnation: inc}, body) //nolint:errcheck // a dead peer is Gone
}

// peerGone is a lost session: of a live process until its exit is seen.
func (m *member) peerGone(p *session.Peer) {
	m.kvGone(p)
	if a := m.attaching[p.ID()]; a != nil {
		delete(m.attaching, p.ID())
		delete(m.claims, a.request)
		return
	}
	if l := m.launchers[p.ID()]; l != nil {
		m.launcherGone(l)
		return
	}
	for _, ref := range m.orphans {
		if ref.peer == p {
			ref.peer = nil
		}
	}
	if lj, lr := m.rankOf(p); lr != nil {
		lr.peer = nil
		m.report(lj)
	}
}

func (m *member) rankOf(p *session.Peer) (*localJob, *localRank) {
	for _, lj := range m.jobs {
		for _, lr := range lj.ranks {
			if lr.peer == p {
				return lj, lr
			}
		}
	}
	return nil, nil
}

func (m *member) jobNamed(name string) *localJob {
	for _, lj := range m.jobs {
		if lj.job.Name == name && lj.job.Phase != replica.Ended {
			return lj
		}
	}
	return nil
}

// freeTorn frees places that were torn, once the handle has joined its copies.
func (m *member) freeTorn(lr *localRank) {
	for _, p := range lr.arena.Places() {
		lr.arena.freeTorn(p)
	}
}

func sameGeometry(a, b replica.Geometry) bool {
	return shm.GeometryDigest(a, replica.ReplicatedPart) == shm.GeometryDigest(b, replica.ReplicatedPart) && shm.GeometryDigest(a, replica.PrivatePart) == shm.GeometryDigest(b, replica.PrivatePart)
}

func chunkBytes(job *replica.Job) uint32 {
	if job.Options.ChunkBytes != 0 {
		return job.Options.ChunkBytes
	}
	return replica.DefaultChunkBytes
}

// slotsOf is how many replicated parts each arena of the job holds.
func slotsOf(job *replica.Job) int {
	if job.Options.Slots != 0 {
		return job.Options.Slots
	}
	return 4
}

func privateCap(job *replica.Job) uint64 {
	if job.Options.PrivateCap != 0 {
		return job.Options.PrivateCap
	}
	return replica.MaxPrivateBytes
}

// cadence is the job's c now.
func cadence(job *replica.Job) replica.Step {
	c := max(job.Options.Cadence, 1)
	for _, p := range job.PlannedCadence {
		if p.From <= job.Position.Step+1 {
			c = p.Every
		}
	}
	return c
}

func arenaKey(job replica.JobID, inc replica.Incarnation, rank replica.Rank, isMirror bool) string {
	kind := "rank"
	if isMirror {
		kind = "mirror"
	}
	return fmt.Sprintf("%s-%s-%d-%d", job, kind, rank, inc)
}
