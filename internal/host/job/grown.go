package job

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/growth"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// longestGrowth is for how long a rank that asks to grow is no hang. Who ends its wait is the leader.
const longestGrowth = 24 * time.Hour

// WaitsForGrowth counts a rank's standstill as none of its own while it asks to grow.
func (j *Job) WaitsForGrowth(e growth.Waits) {
	if lr := j.Ranks[e.Rank]; lr != nil {
		most := time.Duration(0)
		if e.Is {
			most = longestGrowth
		}
		Paused(j, lr, most)
	}
}

// grows takes a rank's call for other regions.
func grows(j *Job, lr *rank.Rank, ev session.Grow) {
	g, err := admission.Registered(ev.Regions)
	if err != nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeInvalid, err.Error())
		return
	}
	j.at.Node.Notify(j.at.Growing, growth.Asked{Job: j.Job.ID, Rank: lr.Rank, Incarnation: lr.Incarnation, Peer: ev.Peer, Request: ev.Header.Request,
		Ask: askNumber(), Epoch: ev.Header.Epoch, Step: ev.Growth.Step, Geometry: g, Recipe: ev.Recipe})
}

func askNumber() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// HandOutGrown makes the arena of a growth that is decided that of its rank. The one of before is a holder until the growth has resumed: the job may
// go back to what lies there.
func (j *Job) HandOutGrown(e growth.HandOut) {
	lr := j.Ranks[e.Rank]
	ev := grownParked{e.Rank, lr.Arena, e.Peer, e.Request}
	if e.Arena != nil {
		ref := j.at.Memory.Hold(e.Arena, holding.GrownKey(e.Job, e.Rank, lr.Incarnation, j.Job.Epoch))
		ref.Process = holding.Process{PID: lr.PID, Start: lr.Start, Proven: !lr.Unproven}
		ref.SetOwner(lr.Incarnation, uint64(lr.PID), lr.Start)
		j.at.Memory.Keep(ref)
		j.Keep(lr.Arena)
		lr.Takes(ref)
		inform(j, ref)
		j.at.Memory.Save()
		j.at.Memory.Reserve(ref)
		j.at.Log.RankNote(j.Job, lr.Rank, "grown", j.Job.Growth.What)
		ev.arena = ref
		j.Report()
	}
	j.at.Memory.After(j.Job.ID, ev)
}

// grownParked says that the arena of a growth is with the keeper, and on the list: it may be handed out.
type grownParked struct {
	rank    replica.Rank
	arena   *holding.Arena
	peer    session.Peer
	request uint32
}

func (ev grownParked) End(j *Job) {
	if j == nil || j.Ranks[ev.rank] == nil || j.Ranks[ev.rank].Arena != ev.arena || j.Ranks[ev.rank].Peer != ev.peer {
		return // it is dead, or connected anew: it asks again
	}
	j.at.Admission.Answer(j, ev.rank, ev.request, j.at.Node.Now())
}

// growthBroken ends the process of a rank whose growth was taken back; its launcher starts another one, which registers what the job has.
func growthBroken(j *Job, lr *rank.Rank) {
	if !lr.Outgrown(j.Job) || j.Job.Phase == replica.Ended {
		return
	}
	lr.End(j.Job, "the growth was broken off by a fault: a new process goes on")
	if lr.Alive() && !lr.Killed && !lr.Unproven {
		lr.Killed = true
		lr.Why = "the growth was broken off by a fault: this process ends, and a new one takes its place, with the regions of before"
		j.at.Log.RankNote(j.Job, lr.Rank, "growth_broken_off", lr.Why)
		kill(j, lr)
	}
}

// strayed reports a rank that has stopped with the words of the arena of before, while the node takes it to have the next one: it did not wait for
// the answer.
func strayed(j *Job, lr *rank.Rank, live replica.Word) bool {
	if j.Job.Growth == nil || lr.Arena.Grown() != j.Job.Epoch || live.Epoch() == 0 || live.Epoch() >= j.Job.Epoch {
		return false
	}
	accuse(j, lr, replica.Fault{Epoch: j.Job.Epoch, Kind: replica.Exception,
		Detail: fmt.Sprintf("the growth at step %d was decided, and the rank went on without waiting for its arena", j.Job.Growth.Step)})
	return true
}

// sayGrowth has launchers print a growth, once.
func sayGrowth(j *Job, was *replica.Job) {
	if is := j.Job.Growth; is != nil && was.Growth == nil {
		j.launcher().Note(fmt.Sprintf("job grows at step %d: %s", is.Step, cmp.Or(is.What, "other regions")))
	}
}
