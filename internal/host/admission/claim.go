package admission

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// claimFor asks Raft for the rank, where it can be had now.
func (g *Gate) claimFor(job Job, p *process, now time.Time) {
	record, rank := job.Record(), p.hello.Rank
	opens := record.Epoch != 0 && (record.Epoch > record.ClosedEpoch || record.Phase != replica.Opening)
	if p.attach == 0 || p.request != 0 || p.creating || !opens {
		return
	}
	if !room.AwaitsProcesses(record) || record.Ranks[rank].Incarnation != 0 && !recovery.Vacated(record, rank) {
		return // the fault that frees the rank is on its way
	}
	if held, is := job.Held(rank); is && held.Finishing {
		return // the arena is still being read in the dead process's name
	}
	if p.geometry.PrivateBytes > room.PrivateCap(record) {
		g.refuse(p, p.attach, wire.CodeRefused, tooPrivate(record, p.geometry))
		return
	}
	kept, known := g.durableGeometry(job, rank)
	if !known {
		return // it is being read
	}
	if text := otherState(job, rank, p.hello.Group, p.geometry, kept); text != "" {
		g.refuse(p, p.attach, wire.CodeRefused, text)
		return
	}
	if g.lacksRoom(job, p, now) {
		return
	}
	if !g.May(record.Owner, record.ID) {
		g.paced = true
		return
	}
	p.request = g.owner.NextRequest()
	p.claim = replica.Claim{Job: record.ID, Rank: rank, Expect: record.Ranks[rank].Incarnation, Holder: g.owner.Self(),
		Group: p.hello.Group, Geometry: shm.GeometryDigest(p.geometry, replica.ReplicatedPart), Nonce: claimNonce(p.hello.Nonce)}
	g.claims[p.request] = p
	g.owner.Send(control.ClaimRequest{ID: p.request, Claim: p.claim, Token: p.hello.Token})
}

// tooPrivate is the refusal of private regions above the job's cap.
func tooPrivate(job *replica.Job, g replica.Geometry) string {
	big := slices.MaxFunc(g.Regions, func(x, y replica.Region) int {
		return int(int64(x.Bytes)*int64(x.Kind)) - int(int64(y.Bytes)*int64(y.Kind))
	})
	return fmt.Sprintf("private regions have %d bytes, the cap is %d; the largest is %q with %d: make it replicated if it is equal across "+
		"the group, or give `replicad run --private-cap-mb` more when the job is created",
		g.PrivateBytes, room.PrivateCap(job), big.Name, big.Bytes)
}

func claimNonce(n uint64) uint64 {
	if n == 0 {
		var b [8]byte
		rand.Read(b[:])
		n = binary.LittleEndian.Uint64(b[:])
	}
	return n
}

// Claimed takes the leader's answer to a claim.
func (g *Gate) Claimed(r control.ClaimReply) {
	p := g.claims[r.ID]
	if p == nil {
		return
	}
	delete(g.claims, r.ID)
	if !g.waitsFor(r.ID, p) {
		return // the process is gone; its claim is judged dead by the report without it
	}
	p.request = 0
	job := g.owner.Known(p.claim.Job)
	if job == nil {
		return
	}
	if r.Refused != "" {
		if r.Retry { // nobody knows what came of it, and in a cluster that is at rest no view comes to try again with
			g.paced = true
		} else {
			g.refuse(p, p.attach, wire.CodeRefused, r.Refused+g.otherThanPeers(job, p.claim, p.geometry))
		}
		return
	}
	p.granted = r.Incarnation
	g.makeArena(job, p)
}

// Resend repeats to a new leader the claims of the processes that are here.
func (g *Gate) Resend() {
	for id, p := range g.claims {
		if !g.waitsFor(id, p) {
			delete(g.claims, id)
			continue
		}
		g.owner.Send(control.ClaimRequest{ID: id, Claim: p.claim, Token: p.hello.Token})
	}
}

// May reports whether the leader may be asked for one more create or claim of a user now; the pace counts it then. A session has one under
// way at most. Those of sessions that are over count until they are answered: a process that comes and goes in a loop fills no link.
func (g *Gate) May(user uint32, job replica.JobID) bool {
	most := g.cfg.PerUser.Sessions
	if most > 0 && g.launchers.UnderWay()+len(g.claims) >= most && g.underWay(user) >= most {
		return false
	}
	return g.owner.May(user, job)
}

// underWay counts the creates and claims of a user that the leader has not answered.
func (g *Gate) underWay(user uint32) (n int) {
	n = g.launchers.UnderWayOf(user)
	for _, p := range g.claims {
		if job := g.owner.Known(p.claim.Job); job != nil && job.Record().Owner == user {
			n++
		}
	}
	return n
}

// waitsFor reports whether the process that a claim was made for still waits for its answer.
func (g *Gate) waitsFor(id uint64, p *process) bool { return p.request == id && g.here(p) }
