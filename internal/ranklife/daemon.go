package ranklife

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// What the job of all scenarios is: one rank, alone.
const (
	JobName                         = "job"
	chunk                           = 4096
	incarnation replica.Incarnation = 5
)

var (
	cluster = replica.ClusterID{0xc1}
	jobID   = replica.JobID{0x0b}
)

// daemon is a daemon's side of one rank. The rank's life and the messages to it are those of host/rank. What host/job adds to that is
// repeated here for one rank: which message moves its life, and that a fence word is raised before the fence is sent.
type daemon struct {
	job    *replica.Job // its record, which the table's leader writes
	rank   *rank.Rank   // nil: this daemon knows of no rank
	arena  *holding.Arena
	refuse *wire.Refused // what the next hello or attach is answered with
	watch  func(session.Peer) error
}

func newDaemon(watch func(session.Peer) error) *daemon {
	return &daemon{watch: watch, job: &replica.Job{ID: jobID, Name: JobName, Era: 1,
		Layout:  replica.Layout{World: 1, Groups: []replica.GroupID{0}},
		Options: replica.Options{MinCopies: 1, Cadence: 1, Slots: 4, ChunkBytes: chunk}.WithDefaults(), Phase: replica.Opening, Epoch: 1,
		Ranks: []replica.Claimed{{Incarnation: incarnation, Node: "n1", NodeIncarnation: 11}}}}
}

func (d *daemon) close() {
	if d.arena != nil {
		d.arena.Close()
	}
}

// life is the rank's, in one word.
func (d *daemon) life() string {
	if d.rank == nil {
		return "none"
	}
	return d.rank.Life.String()
}

// hears takes what the rank sends.
func (d *daemon) hears(ev session.Event) error {
	switch ev := ev.(type) {
	case session.Hello:
		return d.hello(ev)
	case session.Attach:
		return d.attach(ev)
	case session.KV:
		return d.rendezvous(ev)
	case session.Gone:
		if d.rank != nil && d.rank.Peer == ev.Peer {
			d.rank.Peer = nil
		}
		return nil
	}
	if d.rank == nil {
		return fmt.Errorf("%T from a rank that has not attached", ev)
	}
	switch ev := ev.(type) {
	case session.Sealed:
		if d.job.Phase == replica.Opening && d.arena.Captured(d.job.Epoch) {
			d.rank.Initial = d.job.Epoch
		}
	case session.Stopped:
		d.rank.Stops(time.Now(), d.job)
	case session.Loaded:
		if err := d.loaded(ev); err != nil {
			return err
		}
	case session.Pause:
		if ev.Header.Request != 0 {
			d.rank.Paused(ev.Header.Request, d.job.Epoch)
		}
	case session.Leave:
		d.rank.Leaves(ev.Header.Request, d.job)
	case session.Exited:
		d.rank.Peer = nil
		d.rank.Does(rank.Dies)
	}
	d.obeyed()
	return nil
}

func (d *daemon) hello(ev session.Hello) error {
	if ev.File != nil {
		_ = ev.File.Close() // the arena is here
	}
	if err := d.watch(ev.Peer); err != nil {
		return err
	}
	if d.refuses(ev.Peer, ev.Header) {
		return nil
	}
	if ev.File == nil {
		w := wire.Welcome{ABI: wire.RankABI, Rank: ev.Rank, Cluster: cluster, Job: jobID, Era: 1, ChunkBytes: chunk}
		send(ev.Peer, wire.RankHeader{Type: wire.MWelcome, Request: ev.Header.Request}, w.Append(nil))
		return nil
	}
	if d.arena == nil {
		return errors.New("a rank comes back that never had an arena")
	}
	if d.rank == nil {
		d.rank = rank.New(0, incarnation, d.arena, rank.Process{PID: ev.Peer.PID(), Start: ev.Peer.StartTime()})
	}
	d.rank.Returns(ev.Peer)
	send(ev.Peer, d.head(wire.MAttached, ev.Header), d.attached())
	d.obeyed()
	return nil
}

func (d *daemon) attach(ev session.Attach) error {
	if d.refuses(ev.Peer, ev.Header) {
		return nil
	}
	if d.arena == nil {
		if err := d.makes(ev); err != nil {
			return err
		}
	}
	d.rank.Peer = ev.Peer
	_ = ev.Peer.SendFile(d.head(wire.MAttached, ev.Header), d.attached(), d.arena.File()) // one that has hung up asks again
	return nil
}

// makes makes the rank's arena.
func (d *daemon) makes(ev session.Attach) error {
	g, err := replica.NewGeometry(ev.Regions)
	if err != nil {
		return err
	}
	a, err := shm.Create(shm.Spec{Cluster: cluster, Era: 1, Job: jobID, Geometry: g, ChunkBytes: chunk, Slots: 4})
	if err == nil {
		err = a.Reserve(context.Background()) // the rank's worker waits for it
	}
	if err != nil {
		return err
	}
	a.SetOwner(incarnation, uint64(ev.Peer.PID()), ev.Peer.StartTime())
	d.arena = holding.New(a, "arena", func(*shm.Arena) {})
	d.rank = rank.New(0, incarnation, d.arena, rank.Process{PID: ev.Peer.PID(), Start: ev.Peer.StartTime()})
	return nil
}

// send sends a rank a message. One that has hung up meanwhile asks again: a caller that waits in slices gives each connection a slice.
func send(p session.Peer, h wire.RankHeader, body []byte) {
	_ = p.Send(h, body)
}

func (d *daemon) attached() []byte {
	s := d.arena.Spec()
	return wire.Attached{ArenaBytes: d.arena.Header().ArenaBytes, Incarnation: incarnation, Slots: uint32(s.Slots), Ring: uint32(s.Ring),
		Fence: d.arena.Fence(), Job: jobID}.Append(nil)
}

// head is that of the answer to a request.
func (d *daemon) head(kind uint16, to wire.RankHeader) wire.RankHeader {
	return wire.RankHeader{Type: kind, Request: to.Request, Epoch: d.job.Epoch, Incarnation: incarnation}
}

func (d *daemon) refuses(p session.Peer, h wire.RankHeader) bool {
	why := d.refuse
	if d.refuse = nil; why != nil {
		p.Refuse(h.Request, why.Code, why.Text)
	}
	return why != nil
}

// rendezvous lets a rank that is alone pass: nobody else is to be met.
func (d *daemon) rendezvous(ev session.KV) error {
	head := wire.RankHeader{Request: ev.Header.Request, Epoch: ev.Header.Epoch}
	switch ev.Op {
	case wire.MKVSet, wire.MBarrier:
		head.Type = wire.MKVOK
		send(ev.Peer, head, wire.AppendKVOK(nil, wire.CodeOK))
		return nil
	case wire.MKVGet:
		head.Type = wire.MKVValue
		send(ev.Peer, head, wire.KVValue{}.Append(nil))
		return nil
	}
	return fmt.Errorf("the rendezvous of this daemon has no message %d", ev.Op)
}

// loaded holds an acknowledgement against the plan.
func (d *daemon) loaded(ev session.Loaded) error {
	if d.job.Phase != replica.Planned || ev.Header.Epoch != d.job.Epoch {
		return nil
	}
	group, private := d.rank.Sources(d.job)
	if ev.ReplicatedRoot != group.Root || ev.PrivateRoot != private.Root || ev.Generation != d.job.Plan.Generation {
		return fmt.Errorf("loaded %v with other roots than the plan names", ev.Generation)
	}
	d.rank.Loaded = d.job.Epoch
	return nil
}

// obeyed sends the rank what the record asks of it.
func (d *daemon) obeyed() {
	if d.rank == nil {
		return
	}
	if d.job.Phase == replica.Ended {
		d.rank.End(d.job, "the job has ended: "+d.job.EndReason)
		return
	}
	var lies *rank.Lies
	if d.job.Plan != nil {
		slot, _, sealed := d.arena.At(shm.Slot, d.job.Plan.Generation)
		ring, _, also := d.arena.At(shm.Ring, d.job.Plan.Generation)
		if sealed && also {
			lies = &rank.Lies{Tier: replica.OwnRAM, Slot: slot, Ring: ring}
		}
	}
	d.rank.Obey(d.job, lies)
}

// closes raises the fence of the newest epoch, as host/job does: the word first. A rank that left waits for BYE alone.
func (d *daemon) closes() {
	d.job.ClosedEpoch = d.job.Epoch
	if d.rank != nil && (d.job.Phase != replica.Ended || !d.rank.Left()) {
		d.arena.RaiseFence(d.job.ClosedEpoch)
		d.rank.Fence(d.job.ClosedEpoch)
	}
}

// leads does what the table's leader does.
func (d *daemon) leads(what string) error {
	verb, rest, _ := strings.Cut(what, " ")
	if (verb == "plans" || verb == "opens") && d.rank == nil || verb == "opens" && d.job.Plan == nil {
		return errors.New("there is nothing to go on with")
	}
	switch verb {
	case "plans":
		var g replica.Generation
		if _, err := fmt.Sscanf(rest, "%d:%d", &g.Epoch, &g.Step); err != nil {
			return err
		}
		return d.plans(g)
	case "opens":
		d.job.Phase = replica.Open
		d.job.Lineage = append(d.job.Lineage, replica.Opened{Epoch: d.job.Epoch, Start: d.job.Plan.Generation.Step})
	case "closes":
		d.job.Phase = replica.Closed
		d.closes()
	case "ends":
		d.job.Phase, d.job.EndReason = replica.Ended, rest
		d.closes()
	case "refuses":
		name, text, _ := strings.Cut(rest, " ")
		code, known := map[string]int32{"refused": wire.CodeRefused, "again": wire.CodeAgain, "stopped": wire.CodeStopped}[name]
		if !known {
			return fmt.Errorf("no code is called %q", name)
		}
		d.refuse = &wire.Refused{Code: code, Text: text}
	default:
		return fmt.Errorf("no leader does %q", what)
	}
	d.obeyed()
	return nil
}

// plans has the job go on from what the rank has sealed, in the epoch to come where the newest one is closed.
func (d *daemon) plans(g replica.Generation) error {
	_, slot, ok := d.arena.At(shm.Slot, g)
	_, ring, also := d.arena.At(shm.Ring, g)
	if !ok || !also {
		return fmt.Errorf("%v does not lie sealed in the arena: slot %v, ring %v", g, ok, also)
	}
	if d.job.Phase == replica.Closed {
		d.job.Epoch++
	}
	here := []replica.Holder{{Node: "n1", Incarnation: 11}}
	d.job.Phase, d.job.Plan = replica.Planned, &replica.Plan{Epoch: d.job.Epoch, Generation: g, Sources: []replica.Source{
		{Part: replica.OfGroup(0), Root: slot.Root, Tier: replica.OwnRAM, Holders: here},
		{Part: replica.OfRank(0), Root: ring.Root, Tier: replica.OwnRAM, Holders: here}}}
	d.obeyed()
	return nil
}
