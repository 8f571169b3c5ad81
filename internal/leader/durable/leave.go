package durable

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Cluster is who is there when a daemon is asked to end.
type Cluster struct {
	Voters  []replica.NodeName
	Mute    func(replica.NodeName) bool // a voter that is there and does not vote; nil: none
	Linked  func(replica.NodeName) bool // to the leader
	Answers func(replica.NodeName) bool // its daemon is there, and may link yet
	Leaves  func(replica.NodeName) bool // its daemon was told that it may end
	Asked   func(replica.NodeName) bool // its daemon was asked to end, and waits or goes
	Life    func(replica.NodeName) replica.NodeIncarnation
}

// Needed tells whether what a job has committed can be written while the daemon of a node is there, and can't once it has ended: the nodes
// that stay lack a part of it, or are too few to agree on anything. A node whose daemon was asked to end does not stay: where all are asked at once,
// each is needed.
func (c Cluster) Needed(job *replica.Job, node replica.NodeName) bool {
	return job.Undurable() && c.Lacks(job) == "" && c.lacks(job, func(n replica.NodeName) bool { return n != node && c.stays(n) && !c.Asked(n) }) != ""
}

// Lacks says why what a job has committed can't be written by the nodes that are there and stay; empty: it can.
func (c Cluster) Lacks(job *replica.Job) string { return c.lacks(job, c.stays) }

// Awaits tells whether what a job has committed can be written once the daemons have linked that have no link, and answer.
func (c Cluster) Awaits(job *replica.Job) bool {
	return c.lacks(job, func(n replica.NodeName) bool { return (c.Linked(n) || c.Answers(n)) && !c.Leaves(n) }) == ""
}

func (c Cluster) stays(n replica.NodeName) bool { return c.Linked(n) && !c.Leaves(n) }

// lacks says why some nodes can't write what a job has committed; empty: they can.
func (c Cluster) lacks(job *replica.Job, there func(replica.NodeName) bool) string {
	var away []replica.NodeName
	for _, v := range c.Voters {
		if !there(v) || c.Mute != nil && c.Mute(v) {
			away = append(away, v)
		}
	}
	if 2*len(away) >= len(c.Voters) {
		return fmt.Sprintf("voters %v of %v are away or do not vote", away, c.Voters)
	}
	for _, p := range job.Parts {
		if !slices.ContainsFunc(p.Holders, func(h replica.Holder) bool { return there(h.Node) && c.Life(h.Node) == h.Incarnation }) {
			return fmt.Sprintf("the nodes that hold %v are away", p.Part)
		}
	}
	return ""
}

// Holds tells whether a node has a part of what a job has committed.
func (c Cluster) Holds(job *replica.Job, node replica.NodeName) bool {
	return slices.ContainsFunc(job.Parts, func(p replica.PartRoot) bool {
		return slices.ContainsFunc(p.Holders, func(h replica.Holder) bool { return h.Node == node && h.Incarnation == c.Life(node) })
	})
}

// Last tells whether a node takes part in a write of what a job has committed that nothing newer will follow.
func Last(job *replica.Job, node replica.NodeName, ends bool) bool {
	return job.Writer != nil && (job.Stop != nil || ends) && slices.ContainsFunc(job.Writer.Shards, func(s replica.Shard) bool { return s.Node == node })
}
