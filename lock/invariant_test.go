package lock

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// Check finds a state that no entry may lead to, and passes a job that ended, began again or is in another era.
func TestCheck(t *testing.T) {
	id := replica.JobID{1}
	job := func(change func(*replica.Job)) *replica.Job {
		j := &replica.Job{ID: id, Name: "j", Era: 1, Options: replica.Options{MinCopies: 2}, Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Phase: replica.Closed, Epoch: 3, ClosedEpoch: 3, NextIncarnation: 4,
			Lineage: replica.Lineage{{Epoch: 3, Start: 5}}, Position: replica.Position{Epoch: 3, Step: 5}, Committed: replica.Generation{Epoch: 3, Step: 5}, Copies: 2, LastIndex: 8,
			Ranks: []replica.Claimed{{Incarnation: 4, Node: "a", NodeIncarnation: 1}}, Mirrors: [][]replica.NodeName{{"b"}}}
		change(j)
		return j
	}
	two := func(j *replica.Job) {
		j.Layout = replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}
		j.Ranks, j.Mirrors = append(j.Ranks, replica.Claimed{}), append(j.Mirrors, nil)
	}
	was := job(func(j *replica.Job) { j.LastIndex = 7 })
	for name, c := range map[string]struct {
		was, is *replica.Job
		want    string // empty: it holds
	}{
		"nothing new":            {was, job(func(*replica.Job) {}), ""},
		"created":                {nil, job(func(*replica.Job) {}), ""},
		"another entry's":        {was, job(func(j *replica.Job) { j.LastIndex = 6 }), "last index 6"},
		"an epoch that fell":     {was, job(func(j *replica.Job) { j.Epoch, j.ClosedEpoch = 2, 2 }), "epoch 3 -> 2"},
		"a position that fell":   {was, job(func(j *replica.Job) { j.Position.Step = 4 }), "position fell"},
		"history rewritten":      {was, job(func(j *replica.Job) { j.Lineage = replica.Lineage{{Epoch: 2, Start: 5}} }), "lineage"},
		"an incarnation twice":   {was, job(func(j *replica.Job) { two(j); j.Ranks[1] = j.Ranks[0] }), "rank 1: incarnation 4"},
		"a mirror beside it":     {was, job(func(j *replica.Job) { j.Mirrors = [][]replica.NodeName{{"a"}} }), "own node a"},
		"copies and no word":     {was, job(func(j *replica.Job) { j.Copies = 1 }), "1 copies, degraded false"},
		"a commit without parts": {was, job(func(j *replica.Job) { j.Position.Step = 6 }), "with 0 parts"},
		"another era's history":  {was, job(func(j *replica.Job) { j.Era, j.Lineage, j.Position.Step = 2, replica.Lineage{{Epoch: 2, Start: 5}}, 4 }), ""},
		"opening again":          {was, job(func(j *replica.Job) { j.Phase, j.Epoch = replica.Opening, 4 }), "nothing grows"},
		"a growth of another step": {was, job(func(j *replica.Job) {
			j.Phase, j.Epoch, j.Growth = replica.Opening, 4, &replica.Growth{Step: 4}
		}), "grows at step 4"},
		"a growth half done": {job(func(j *replica.Job) {
			j.Phase, j.Epoch, j.Growth, j.GroupGeometry = replica.Opening, 4, &replica.Growth{Step: 5, Geometries: []replica.Digest{{1}}}, []replica.Digest{{2}}
		}), job(func(j *replica.Job) {
			j.Epoch, j.ClosedEpoch, j.GroupGeometry = 4, 4, []replica.Digest{{2}}
		}), "half done"},
		"committed before it grew": {was, job(func(j *replica.Job) { j.Epoch, j.ClosedEpoch, j.Grown = 4, 4, 4 }), "from before the growth"},
		"ended, with fewer words": {was, job(func(j *replica.Job) {
			j.Phase, j.Options, j.Ranks, j.Mirrors = replica.Ended, replica.Options{}, nil, nil
		}), ""},
		"begun again": {job(func(j *replica.Job) { j.Phase, j.Ranks = replica.Ended, nil }), job(func(j *replica.Job) {
			j.Phase, j.Position, j.Ranks = replica.Closed, replica.Position{}, make([]replica.Claimed, 2)
		}), ""},
		"a rank too few":   {was, job(func(j *replica.Job) { j.Layout.World = 2 }), "1 ranks and 1 mirrors for a world of 2"},
		"a group too many": {was, job(func(j *replica.Job) { j.GroupMirrors = make([][]replica.NodeName, 3) }), "mirrors of 3 groups, of 0"},
		"named too late":   {was, job(func(j *replica.Job) { j.Naming = make([]replica.GroupID, 2) }), "2 ranks name their groups"},
		"an older plan": {was, job(func(j *replica.Job) {
			j.Phase, j.Epoch, j.Plan = replica.Planned, 4, &replica.Plan{Epoch: 2, Ranks: j.Ranks}
		}), "the plan of epoch 2"},
		"opened with more":       {was, job(func(j *replica.Job) { j.OpenedWith = 9 }), "opened with incarnation 9"},
		"grown later":            {was, job(func(j *replica.Job) { j.Grown = 9 }), "grown in epoch 9"},
		"before what is newer":   {was, job(func(j *replica.Job) { j.Previous = &replica.Earlier{Generation: j.Committed} }), "was committed before"},
		"a write of no number":   {was, job(func(j *replica.Job) { j.Writer = &replica.DurableWrite{Number: 2, Shards: make([]replica.Shard, 1)} }), "durable write 2 of 0"},
		"a write of nothing":     {was, job(func(j *replica.Job) { j.Writer, j.Writes = &replica.DurableWrite{Number: 2}, 2 }), "durable write 2 of nothing"},
		"mirrored twice":         {was, job(func(j *replica.Job) { j.Mirrors[0] = []replica.NodeName{"b", "b"} }), "rank 0 is mirrored twice"},
		"quarantined twice":      {was, job(func(j *replica.Job) { j.Quarantined = []replica.NodeName{"b", "c", "b"} }), "quarantined twice"},
		"a fault to come":        {was, job(func(j *replica.Job) { j.Faults = []replica.Fault{{Epoch: 9}} }), "of epoch 9 in epoch 3"},
		"a part of no root":      {was, job(func(j *replica.Job) { j.Parts = []replica.PartRoot{{Part: replica.OfGroup(0)}} }), "no root of group 0"},
		"begun again, and lower": {job(func(j *replica.Job) { j.Phase = replica.Ended }), job(func(j *replica.Job) { j.NextIncarnation = 1 }), "incarnations fell from 4 to 1"},
	} {
		before := View{Index: 7, Jobs: map[replica.JobID]*replica.Job{}}
		if c.was != nil {
			before.Jobs[id] = c.was
		}
		err := Check(before, View{Index: 8, Jobs: map[replica.JobID]*replica.Job{id: c.is}})
		if got := err == nil; got != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
