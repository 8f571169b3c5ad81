package host

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/replica"
)

// planned is a job in which rank 0 has to load what node n2 alone holds.
func planned() *replica.Job {
	return fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
		j.Epoch, j.Phase = 4, replica.Planned
		held := []replica.Holder{{Node: "n2", Incarnation: 22}}
		j.Plan = &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 5), Layout: j.Layout, Ranks: j.Ranks, Sources: []replica.Source{
			{Part: replica.OfGroup(0), Root: replica.Digest{7}, Tier: replica.PeerRAM, Holders: held},
			{Part: replica.OfRank(0), Root: replica.Digest{8}, Tier: replica.PeerRAM, Holders: held},
			{Part: replica.OfRank(1), Root: replica.Digest{9}, Tier: replica.PeerRAM, Holders: held}}}
	})
}

// TestRelay: a node that the leader names fetches the part; the others fetch from it as well, and the holder serves it.
func TestRelay(t *testing.T) {
	d := newRig(t)
	lj := d.put(planned())
	order := control.RelayOrder{Job: fixture.JobID, Epoch: 4, Part: replica.OfGroup(0), Rank: 0, Node: replica.Holder{Node: "n3", Incarnation: 33}}
	d.leaderSays(order)
	d.leaderSays(order)
	f := fetch.Parts{Fetcher: d.hands.Fetches, Job: lj.Job, Plan: lj.Job.Plan, Rank: 0}
	var holders []replica.Holder
	d.work.Go(func() {
		src, _ := f.Plan.Source(replica.OfGroup(0))
		got := append(f.Donors(d.ctx, src, replica.OfGroup(0)), f.Donors(d.ctx, src, replica.FrozenOf(0))...)
		d.Post(asked{calls(func() { holders = got }), make(chan struct{})})
	})
	d.until("the holders", func() bool { return holders != nil })
	want := []replica.Holder{{Node: "n2", Incarnation: 22}, {Node: "n3", Incarnation: 33}}
	if !slices.Equal(holders, append(slices.Clone(want), want...)) {
		t.Fatalf("fetches from %v", holders)
	}
	if !lj.Mirrors.Relayed(replica.OfGroup(0), 4, "n3") || lj.Mirrors.Relayed(replica.OfRank(0), 4, "n3") || lj.Mirrors.Relayed(replica.OfGroup(0), 5, "n3") {
		t.Fatal("the wrong node is known to fetch the part for others")
	}
}
