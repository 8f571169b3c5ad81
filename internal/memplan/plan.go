package memplan

import (
	"fmt"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/replica"
)

// Plan is what the fullest node of a job needs, in bytes. The lists' sums are exact.
type Plan struct {
	Job     Job      `json:"-"`
	World   int      `json:"world"`
	Nodes   int      `json:"nodes"`
	Slots   int      `json:"slots"`
	Shard   uint64   `json:"shard_bytes"` // of the state that is captured at each step, on each rank
	Arena   uint64   `json:"arena_bytes"` // of one rank
	Needs   []Need   `json:"needs"`
	Node    uint64   `json:"node_bytes"` // all of Needs
	Room    uint64   `json:"node_memory_bytes,omitempty"`
	Fits    *bool    `json:"fits,omitempty"` // Node fits into Room; missing: no room was named
	Changes []Change `json:"changes"`
}

// Need is one kind of memory on the node.
type Need struct {
	What  string `json:"what"`
	Count int    `json:"count"`
	Each  uint64 `json:"each_bytes"`
	Bytes uint64 `json:"bytes"`
}

// Change is what one other value would come to.
type Change struct {
	Flag string `json:"flag"`
	Why  string `json:"why"` // what it costs or brings besides
	Node uint64 `json:"node_bytes"`
	Diff int64  `json:"diff_bytes"`
	Fits *bool  `json:"fits,omitempty"`
}

// New plans for a job that was checked, with what one knob changes.
func New(j Job) (Plan, error) {
	p, err := single(j)
	if err != nil {
		return p, err
	}
	for _, k := range knobs(j) {
		q, err := single(k.job)
		if k.job.Check() != nil || err != nil {
			continue // it can't be turned any further
		}
		p.Changes = append(p.Changes, Change{Flag: k.flag, Why: k.why, Node: q.Node, Diff: int64(q.Node) - int64(p.Node), Fits: q.Fits})
	}
	return p, nil
}

// single plans without changes.
func single(j Job) (p Plan, err error) {
	if err := j.Check(); err != nil {
		return p, err
	}
	spec, err := j.arena()
	if err != nil {
		return p, err
	}
	h, err := spec.Layout()
	if err != nil {
		return p, fmt.Errorf("%w: more --shards make it smaller", err)
	}
	var mirrors [2]uint64 // a mirror's arena: of a shard, of a rank's own part
	for i, part := range []replica.PartKind{replica.ReplicatedPart, replica.PrivatePart} {
		regions := spec.Geometry.Of(part)
		if len(regions) == 0 {
			continue
		}
		m, err := spec.MirrorOf(part, regions)
		if err != nil {
			return p, err
		}
		if mirrors[i], err = m.Bytes(); err != nil {
			return p, err
		}
	}
	trained, frozen := j.shard()
	p = Plan{Job: j, World: j.World(), Nodes: j.Nodes(), Slots: spec.Slots, Shard: trained, Arena: h.ArenaBytes, Room: j.Room}
	ranks := min(j.RanksPerNode, p.World)
	add := func(what string, count int, each uint64) {
		if n := uint64(count) * each; n > 0 {
			p.Needs = append(p.Needs, Need{what, count, each, n})
			p.Node += n
		}
	}
	add("arenas: slots", ranks*int(h.Slots), h.SlotStride)
	add("arenas: kept once", ranks, h.SlotOffset-h.FrozenOffset)
	add("arenas: ranks' own parts", ranks*int(h.Ring), h.RingStride)
	add("arenas: tables, staging", ranks, h.FrozenOffset+uint64(h.Staging)*h.StagingStride)
	shards, own := fullest(j, mirrors)
	add("mirrors: shards", shards, mirrors[0])
	add("mirrors: ranks' own parts", own, mirrors[1])
	if j.Stages {
		add("stages of tensors on a device", ranks, trained+frozen)
	}
	add("process that restarts fork from, shared with them", 1, j.Preloaded)
	add("copies for durable writes, at most", 1, j.SpoolMemory)
	if p.Room > 0 {
		fits := p.Node <= p.Room
		p.Fits = &fits
	}
	return p, nil
}

// fullest is how many mirrors the node that gets the most has, by shards and ranks' own parts. Among places that are as good, ties go by the
// job's id, which is drawn when it is made: this is one draw.
func fullest(j Job, each [2]uint64) (shards, own int) {
	in := place.Placement{Job: replica.JobID{1}, Layout: j.layout(), Nodes: make(map[replica.NodeName]replica.Node), Usable: make(map[replica.NodeName]bool), Copies: j.Copies}
	for r := range in.Layout.Groups {
		name := replica.NodeName(fmt.Sprintf("node-%d", r/j.RanksPerNode))
		in.Nodes[name], in.Usable[name] = replica.Node{Name: name}, true
		in.Ranks = append(in.Ranks, replica.Claimed{Incarnation: 1, Node: name})
	}
	byRank, byGroup := place.Mirrors(in)
	held := make(map[replica.NodeName]*[2]int)
	for i, lists := range [][][]replica.NodeName{byGroup, byRank} {
		for _, nodes := range lists {
			for _, n := range nodes {
				if held[n] == nil {
					held[n] = new([2]int)
				}
				held[n][i]++
			}
		}
	}
	most := uint64(0)
	for _, h := range held {
		if n := uint64(h[0])*each[0] + uint64(h[1])*each[1]; n > most {
			most, shards, own = n, h[0], h[1]
		}
	}
	return shards, own
}
