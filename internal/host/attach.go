package host

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// attaching is a process on its way from HELLO to its arena. It waits where waiting helps (no leader, the rank's fault
// not applied yet) and is refused where it does not.
type attaching struct {
	peer     session.Peer
	hello    wire.Hello
	helloReq uint32
	attach   uint32 // request of ATTACH; 0: not sent yet
	welcomed bool
	turned   bool // its last ATTACH was refused
	geometry replica.Geometry
	request  uint64 // of the claim under way; 0: none
	claim    replica.Claim
	creating bool           // its arena is being made, or parked
	arena    *holding.Arena // being parked for it; its predecessor's, or nobody's yet
	granted  replica.Incarnation
}

func (h *Host) refuse(a *attaching, req uint32, c int32, text string) {
	h.log.RefusedRank(a.hello.Job, a.hello.Rank, a.peer.PID(), text)
	h.audit.Refused("rank", h.self.Name, audit.Fields{"job": a.hello.Job, "rank": fmt.Sprint(a.hello.Rank), "pid": fmt.Sprint(a.peer.PID()), "refused": text})
	h.launchers.Refused(a.hello.Job, a.hello.Rank, text)
	a.peer.Refuse(req, c, text)
	h.desk.Leave(a.peer)
	if a.attach == 0 {
		delete(h.attaching, a.peer.ID())
		return
	}
	a.turned, a.attach, a.request, a.granted, a.creating = true, 0, 0, 0, false // it may ask anew: the refusal may not have reached it
}

// registered lays out the regions that a rank registers. The library has refused them already; one of another make may not have.
func registered(regions []replica.Region) (replica.Geometry, error) {
	for _, r := range regions {
		if err := r.Registrable(); err != nil {
			return replica.Geometry{}, err
		}
	}
	return replica.NewGeometry(regions)
}

// serveAttaching tries again whoever waits, after anything that may have cleared the way.
func (h *Host) serveAttaching() {
	for _, a := range h.attaching {
		h.advance(a)
	}
}

// advance takes a process as far towards its arena as the job's state allows now.
func (h *Host) advance(a *attaching) {
	req := a.helloReq
	if a.attach != 0 {
		req = a.attach
	}
	lj := h.jobNamed(a.hello.Job)
	v := a.judge(h.self.Name, h.informed, lj, h.launchers.Launching(a.hello.Job))
	if v.to == attachedAlready {
		if h.handOutAgain(lj, lj.ranks[a.hello.Rank], a) {
			return
		}
		v.to = refused
	}
	switch v.to {
	case waits:
	case refused:
		h.refuse(a, req, v.code, v.text)
	case welcomed:
		h.welcome(lj.job, a)
	case claims:
		h.claimFor(lj, a)
	case attachedAlready: // see above
	}
}

func (h *Host) welcome(job *replica.Job, a *attaching) {
	a.welcomed = true
	h.meet(job, a)
	a.peer.Send(wire.RankHeader{Type: wire.MWelcome, Request: a.helloReq}, //nolint:errcheck // a dead peer is Gone
		wire.Welcome{ABI: wire.RankABI, Rank: a.hello.Rank, Cluster: h.cluster, Job: job.ID, Era: h.era, ChunkBytes: room.ChunkBytes(job)}.Append(nil))
}

// meet lets a process ask the rendezvous.
func (h *Host) meet(job *replica.Job, a *attaching) {
	h.desk.Admit(a.peer, desk.Caller{Job: job.ID, Rank: a.hello.Rank, Nonce: a.hello.Nonce})
}

// handOutAgain serves a process that was named the owner of its arena by a daemon that died before it had handed the arena out: the claim
// is granted, and the process asks anew. False: it has the arena, or another one.
func (h *Host) handOutAgain(lj *localJob, lr *localRank, a *attaching) bool {
	if lr.peer != nil || lr.arena.Step() != 0 || lr.initial != 0 || lr.superseded(lj.job) {
		return false
	}
	switch {
	case !a.welcomed:
		h.welcome(lj.job, a)
	case a.attach == 0: // its geometry is on its way
	case !lr.arena.Fits(a.geometry):
		return false
	default:
		delete(h.attaching, a.peer.ID())
		lr.peer, lr.unproven, lr.ordered = a.peer, false, orderKey{}
		h.launchers.Attached(lj.job.Name, lr.rank)
		lr.arena.SetCandidate(lj.candidate.Position)
		lr.arena.SetCadence(lock.Cadence(lj.job))
		h.answerAttach(lj, lr, a.attach)
		h.log.Claimed(lj.job, lr.rank, lr.incarnation, h.self.Name, lr.pid)
		h.reconcile(lj)
	}
	return true
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
func (h *Host) claiming(lj *localJob, rank replica.Rank) bool {
	for _, a := range h.attaching {
		if a.hello.Job == lj.job.Name && a.hello.Rank == rank && (a.request != 0 || a.creating) {
			return true
		}
	}
	return false
}

// superseded tells whether a newer incarnation holds the rank, or nobody will: an ended job has no ranks any more.
func (lr *localRank) superseded(job *replica.Job) bool {
	return job.Phase == replica.Ended || job.Ranks[lr.rank].Incarnation > lr.incarnation
}

// claimFor asks Raft for the rank, where it can be had now.
func (h *Host) claimFor(lj *localJob, a *attaching) {
	job, rank := lj.job, a.hello.Rank
	if a.attach == 0 || a.request != 0 || a.creating || job.Epoch == 0 || job.Epoch <= job.ClosedEpoch && job.Phase == replica.Opening {
		return
	}
	if job.Phase != replica.Opening && job.Phase != replica.Closed || job.Ranks[rank].Incarnation != 0 && !recovery.Vacated(job, rank) {
		return // the fault that frees the rank is on its way
	}
	if lr := lj.ranks[rank]; lr != nil && lr.finishing > 0 {
		return // the arena is still being read in the dead process's name
	}
	if a.geometry.PrivateBytes > room.PrivateCap(job) {
		big := slices.MaxFunc(a.geometry.Regions, func(x, y replica.Region) int {
			return int(int64(x.Bytes)*int64(x.Kind)) - int(int64(y.Bytes)*int64(y.Kind))
		})
		h.refuse(a, a.attach, wire.CodeRefused, fmt.Sprintf("private regions have %d bytes, the cap is %d; the largest is %q with %d: make it replicated if it is equal across the group, or give `replicad run --private-cap-mb` more when the job is created",
			a.geometry.PrivateBytes, room.PrivateCap(job), big.Name, big.Bytes))
		return
	}
	kept, known := h.durableGeometry(lj, rank)
	if !known {
		return // it is being read
	}
	if text := lj.otherState(rank, a.hello.Group, a.geometry, kept); text != "" {
		h.refuse(a, a.attach, wire.CodeRefused, text)
		return
	}
	if h.lacksRoom(lj, a) {
		return
	}
	if !h.mayAsk(job.Owner, job.ID) {
		h.claimsWait = true
		return
	}
	a.request = h.nextRequest()
	a.claim = replica.Claim{Job: job.ID, Rank: rank, Expect: job.Ranks[rank].Incarnation, Holder: h.holder(), Group: a.hello.Group, Geometry: shm.GeometryDigest(a.geometry, replica.ReplicatedPart), Nonce: claimNonce(a.hello.Nonce)}
	h.claims[a.request] = a
	h.send(control.ClaimRequest{ID: a.request, Claim: a.claim, Token: a.hello.Token})
}

func claimNonce(n uint64) uint64 {
	if n == 0 {
		var b [8]byte
		rand.Read(b[:])
		n = binary.LittleEndian.Uint64(b[:])
	}
	return n
}

func (h *Host) claimReplied(r control.ClaimReply) {
	a := h.claims[r.ID]
	if a == nil {
		return
	}
	delete(h.claims, r.ID)
	if !h.waitsFor(r.ID, a) {
		return // the process is gone; its claim is judged dead by the report without it
	}
	a.request = 0
	lj := h.jobs[a.claim.Job]
	if lj == nil {
		return
	}
	if r.Refused != "" {
		if r.Retry { // nobody knows what came of it, and in a cluster that is at rest no view comes to try again with
			h.claimsWait = true
		} else {
			h.refuse(a, a.attach, wire.CodeRefused, r.Refused+h.otherThanPeers(lj, a.claim, a.geometry))
		}
		return
	}
	a.granted = r.Incarnation
	h.makeArena(lj, a)
}
