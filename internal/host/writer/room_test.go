package writer

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/replica"
)

// What ranks and launchers have reported is in the commit.
func TestACommitHasWhatWasSaid(t *testing.T) {
	n := begun(t, 2)
	n.Learn(Ordered{control.MarkerOrder{Job: n.View.Job.ID, Generation: gen5, Number: n.writes, Keep: "epoch 3", Said: []replica.Remark{
		{Kind: replica.Note, Name: "lr", Text: "0.1"}, {Kind: replica.Version, Name: "torch", Text: "2.11"},
		{Kind: replica.Metric, Name: "loss", Value: 0.5, Step: 4},
		{Kind: replica.LoaderEpoch, Name: "train", Value: 3, Step: 2}, {Kind: replica.LoaderEpoch, Name: "val", Value: 1, Step: 2}}}})
	n.Play("steps")
	s := n.marked.Said
	if n.marked.Keep != "epoch 3" || s.Notes["lr"] != "0.1" || s.Provenance["torch"] != "2.11" || s.Metrics["loss"] != 0.5 || s.Loader == nil || *s.Loader != 3 {
		t.Errorf("%+v", s)
	}
}

// A commit that does not lack the slot costs no write its own.
func TestAWriteThatHoldsNobodyUpGoesOn(t *testing.T) {
	for what, c := range map[string]func(*node){
		"no commit waits":                    func(*node) {},
		"a place is free":                    func(n *node) { n.arena.Free(shm.Place{Index: 1}); n.Play("awaits 9") },
		"the candidate is here":              func(n *node) { n.Play("awaits 8") },
		"no rank has come to the candidate":  func(n *node) { n.Play("awaits 9"); n.Play("makes 8") },
		"the candidate is of another epoch":  func(n *node) { n.Play("awaits 9"); n.View.Candidate.Generation.Epoch = 2 },
		"the candidate is committed already": func(n *node) { n.Play("awaits 4") },
	} {
		n := crowded(t)
		c(n)
		if got := n.Play("passes 29800ms"); got != "" || !n.held() {
			t.Errorf("%s: it was given up: %s", what, got)
		}
	}
}

// The private parts of a node's ranks are written as one object, and reported at once.
func TestPrivatePartsAreOneObject(t *testing.T) {
	n := newNode(t, 2)
	var roots [2]replica.Digest
	n.private = roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false)})
	roots[0] = roomtest.Seal(t, n.private, shm.Place{Kind: shm.Ring}, gen5, replica.Digest{}).Root
	second := roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false), Rank: 1})
	roots[1] = roomtest.Seal(t, second, shm.Place{Kind: shm.Ring}, gen5, replica.Digest{}).Root
	n.more = []room.Mirror{{Part: replica.OfRank(1), Arena: second}}
	n.View.Job = fixture.Changed(n.View.Job, func(j *replica.Job) {
		j.Writer = &replica.DurableWrite{Generation: gen5, Number: 1, Shards: []replica.Shard{
			{Part: replica.OfGroup(0), Node: "n1", Root: n.Seal("rank-0", "slot:0", "5").Root},
			{Part: replica.OfRank(0), Node: "n1", Root: roots[0]}, {Part: replica.OfRank(1), Node: "n1", Root: roots[1]},
			{Part: replica.OfRank(2), Node: "n2"}}}
	})
	n.room.Learn(n.Now, act.Changed{Job: n.View.Job.ID})
	n.Play("steps")
	if w := n.write; w.Object != "node-n1" || len(w.pieces) != 2 {
		t.Fatalf("object %q of %d parts", w.Object, len(w.pieces))
	}
	r := runs(t, n, spool.Config{Dir: t.TempDir()})
	for range 2 {
		soon(t, "a slot", r.freed)
	}
	r.goesOn(2 * len(n.write.pieces[0].slot.Manifest().Chunks))
	if err := soon(t, "the end", r.ended); err != nil || second.Readers(shm.Place{Kind: shm.Ring}) != 0 {
		t.Errorf("it ends with %v", err)
	}
	n.write.Info = replica.Stored{Key: "node-n1"}
	n.room.Learn(n.Now, act.Ended{Of: n.write})
	reports := 0
	for _, e := range n.room.Step(n.Now) {
		if s, ok := sent(e); ok && s.Part == replica.OfRank(0) && slices.Equal(s.Also, []replica.Part{replica.OfRank(1)}) {
			reports++
		}
	}
	if reports != 1 {
		t.Errorf("%d reports of both parts", reports)
	}
	n.write.end(n.Now)
	if soon(t, "its removal", r.gone); !r.spool.Empty() {
		t.Error("something is left in the spool")
	}
}

func sent(e act.Effect) (r control.ShardReport, is bool) {
	s, is := e.(act.Send)
	if is {
		r, is = s.Msg.(control.ShardReport)
	}
	return r, is
}
