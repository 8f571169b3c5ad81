package durable

import (
	"slices"

	"github.com/replicad/replicad/replica"
)

// Cluster is who is there when a daemon is asked to end.
type Cluster struct {
	Voters []replica.NodeName
	Linked func(replica.NodeName) bool // to the leader
	Leaves func(replica.NodeName) bool // its daemon was told that it may end
	Life   func(replica.NodeName) replica.NodeIncarnation
}

// Needed tells whether what a job has committed can be written while the daemon of a node is there, and can't once it has ended: the nodes
// that stay lack a part of it, or are too few to agree on anything.
func (c Cluster) Needed(job *replica.Job, node replica.NodeName) bool {
	return job.Undurable() && c.Writable(job) && !c.writable(job, func(n replica.NodeName) bool { return n != node && c.Linked(n) && !c.Leaves(n) })
}

// Writable tells whether what a job has committed can be written by the nodes that are there and stay.
func (c Cluster) Writable(job *replica.Job) bool {
	return c.writable(job, func(n replica.NodeName) bool { return c.Linked(n) && !c.Leaves(n) })
}

// writable tells whether some nodes can write what a job has committed.
func (c Cluster) writable(job *replica.Job, there func(replica.NodeName) bool) bool {
	votes := 0
	for _, v := range c.Voters {
		if there(v) {
			votes++
		}
	}
	if 2*votes <= len(c.Voters) {
		return false
	}
	for _, p := range job.Parts {
		if !slices.ContainsFunc(p.Holders, func(h replica.Holder) bool { return there(h.Node) && c.Life(h.Node) == h.Incarnation }) {
			return false
		}
	}
	return true
}

// Last tells whether a node takes part in a write of what a job has committed that nothing newer will follow.
func Last(job *replica.Job, node replica.NodeName, ends bool) bool {
	return job.Writer != nil && (job.Stop != nil || ends) && slices.ContainsFunc(job.Writer.Shards, func(s replica.Shard) bool { return s.Node == node })
}
