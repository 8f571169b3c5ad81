package recovery_test

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// everythingLost is a job whose every node came back with empty memory; durable is what its log says of the durable tier.
func everythingLost(t *testing.T, unread string, durable bool) *world {
	t.Helper()
	w := newWorld()
	w.unread = unread
	for _, n := range []replica.NodeName{"a", "b"} {
		w.addNode(n, 1, false, nil)
	}
	w.create([]replica.GroupID{0, 0}, replica.Options{DurableEvery: 1})
	if err := w.wait(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	j := w.state()
	if j.Phase != replica.Open {
		t.Fatalf("the job is %v", j.Phase)
	}
	if durable {
		w.writes(t)
	}
	w.said = nil
	for _, n := range w.names() {
		w.dieNode(n)
		w.boot(n)
	}
	if err := w.wait(5 * time.Minute); err != nil {
		t.Fatal(err)
	}
	return w
}

// writes has the committed generation written to the durable tier.
func (w *world) writes(t *testing.T) {
	t.Helper()
	j := w.state()
	write := replica.DurableWrite{Generation: j.Committed, Position: j.Position, Writer: j.Ranks[0].Node}
	for _, p := range j.Parts {
		write.Shards = append(write.Shards, replica.Shard{Part: p.Part, Root: p.Root, Node: p.Holders[0].Node})
	}
	for _, c := range []replica.Command{replica.BeginDurable{Job: w.job, Write: write}, replica.EndDurable{Job: w.job, Generation: j.Committed, Done: true}} {
		if out := w.apply(c); out.Err != nil {
			t.Fatal(out.Err)
		}
	}
	w.addDurable(j.Committed)
}

// A durable tier that can't be read is no durable tier without the job: as long as something was written there the job waits,
// says why, and asks again in peace; it goes on once the disk is back.
func TestUnreadDurableTierIsWaitedFor(t *testing.T) {
	const why = "read /durable: input/output error"
	w := everythingLost(t, why, true)
	if j := w.state(); j.Phase != replica.Closed {
		t.Fatalf("the job is %v: %s", j.Phase, j.EndReason)
	}
	if said := strings.Join(w.said, "\n"); !strings.Contains(said, "waiting: memory lacks") || !strings.Contains(said, "the durable tier can't be read, it is tried again: "+why) {
		t.Errorf("it does not say what it waits for:\n%s", said)
	}
	if w.scans < 10 || w.scans > 300 {
		t.Errorf("%d scans in five minutes: want one every few seconds", w.scans)
	}
	w.unread = ""
	if err := w.wait(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	if j := w.state(); j.Phase != replica.Open || j.Plan.Tier() != replica.Disk {
		t.Errorf("with the disk back the job is %v, plan %+v", j.Phase, j.Plan)
	}
}

// Of a tier to which nothing was written nothing can be hoped for.
func TestUnreadDurableTierWithoutTheJob(t *testing.T) {
	w := everythingLost(t, "it is not mounted", false)
	if j := w.state(); j.Phase != replica.Ended || !strings.Contains(j.EndReason, "nothing newer was written to the durable tier, which can't be read: it is not mounted") {
		t.Errorf("the job is %v: %s", j.Phase, j.EndReason)
	}
}

// What memory holds is resumed from at once where the unread tier has nothing newer.
func TestUnreadDurableTierIsOlderThanMemory(t *testing.T) {
	in := plan.Input{Job: &replica.Job{ID: replica.JobID{1}, Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Phase: replica.Closed, Epoch: 1, ClosedEpoch: 1, Copies: 1, Options: replica.Options{DurableEvery: 1},
		Ranks: []replica.Claimed{{Incarnation: 1, Node: "a", NodeIncarnation: 1}}, Lineage: replica.Lineage{{Epoch: 1}}, Mirrors: make([][]replica.NodeName, 1),
		Committed: replica.Generation{Epoch: 1, Step: 9}, Position: replica.Position{Epoch: 1, Step: 9}, Condemned: []replica.Generation{{Epoch: 1, Step: 9}}},
		Nodes: map[replica.NodeName]replica.Node{"a": {Name: "a", Incarnation: 1}}, Connected: map[replica.NodeName]bool{"a": true}, Unread: "input/output error"}
	at := func(s replica.Step) replica.Generation { return replica.Generation{Epoch: 1, Step: s} }
	rep := replica.NodeReport{Job: in.Job.ID, Holder: replica.Holder{Node: "a", Incarnation: 1}, Fenced: 1, Settled: true, Ranks: []replica.RankReport{{Rank: 0, Incarnation: 1, Alive: true, Attached: true, Stopped: true}}}
	for _, p := range []replica.Part{replica.OfGroup(0), replica.OfRank(0)} {
		rep.Parts = append(rep.Parts, replica.Held{Part: p, Generation: at(8), Root: root(p, at(8))})
	}
	in.Reports = map[replica.NodeName]replica.NodeReport{"a": rep}
	for _, c := range []struct {
		durable, writing replica.Step
		want             plan.VerdictKind
	}{{0, 0, plan.Ready}, {5, 0, plan.Ready}, {8, 0, plan.Ready}, {9, 0, plan.Wait}, {5, 9, plan.Wait}, {0, 7, plan.Ready}} {
		in.Job.Durable, in.Job.Writer = replica.Generation{}, nil
		if c.durable > 0 {
			in.Job.Durable = at(c.durable)
		}
		if c.writing > 0 {
			in.Job.Writer = &replica.DurableWrite{Generation: at(c.writing)}
		}
		p, v := plan.Make(in)
		if v.Kind != c.want || v.Kind == plan.Ready && p.Generation != at(8) || v.Kind == plan.Wait && (v.Why != plan.ForScan || !v.Scan) {
			t.Errorf("durable %d, being written %d: %+v, %+v, want %v", c.durable, c.writing, v, p.Generation, c.want)
		}
	}
}
