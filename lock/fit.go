package lock

import (
	"fmt"
	"maps"

	"github.com/replicad/replicad/replica"
)

// What the log holds is bounded by what everybody who must read the state can read: a node its view, a voter a snapshot. A job's
// records are counted in full when it is created, and a node's when it registers: nothing that a job needs later, a claim, a fault or a
// commit, is refused for want of room.

// MaxView is how large the state may become, encoded, in bytes: 80,000 ranks with a good deal of room, and half of the largest snapshot.
const MaxView = 128 << 20

const (
	maxAddr  = 261 // bytes: a host name of 255, a colon and a port
	typical  = 8   // bytes of a node's name, where none is registered
	nodeSize = 200 // bytes of a node's record without its texts: sixteen former incarnations among them
	jobSize  = 16 << 10
	maxNodes = 1 << 16 // half of what a map in a message may hold
)

// Fits refuses, as Full or Invalid, what begins a record that the state has no room for: a job or a node. The leader asks before it
// proposes, so that nothing of that size lies in the log, and names MaxView in the command: then the state machine asks as well, since the
// state may have grown meanwhile. A command without a Limit was logged by a leader that did not ask; it is applied as every voter applied it,
// or the voters' states would differ.
func Fits(v View, c replica.Command) error {
	switch c := c.(type) {
	case replica.RegisterNode:
		return fitsNode(v, c.Node, MaxView)
	case replica.CreateJob:
		if c.NameGroups && len(c.Layout.Groups) == 0 && c.Layout.World <= replica.MaxRanks {
			c.Layout = replica.Apart(c.Layout.World)
		}
		return fitsJob(v, c, MaxView)
	case replica.Revoke:
		return fitsRevocation(v, c.Revocation)
	case replica.Grow:
		return fitsGrowth(v, c)
	}
	return nil
}

// fitsNode takes a node that is known and grows by nothing whatever the state has become: it may only have been started anew.
func fitsNode(v View, n replica.Node, limit uint64) error {
	if len(n.Addr) > maxAddr || len(n.Labels) > replica.MaxLabels {
		return refuse(Invalid, "register node %s: address of %d bytes, %d labels: want at most %d and %d", n.Name, len(n.Addr), len(n.Labels), maxAddr, replica.MaxLabels)
	}
	if len(n.Addrs) > replica.MaxAddrs {
		return refuse(Invalid, "register node %s: %d further addresses: want at most %d", n.Name, len(n.Addrs), replica.MaxAddrs)
	}
	for _, a := range n.Addrs {
		if len(a) > maxAddr {
			return refuse(Invalid, "register node %s: further address of %d bytes: want at most %d", n.Name, len(a), maxAddr)
		}
	}
	for k, l := range n.Labels {
		if len(k) > replica.MaxLabelBytes || len(l) > replica.MaxLabelBytes {
			return refuse(Invalid, "register node %s: label %.20q... of %d bytes, its value of %d: want at most %d each", n.Name, k, len(k), len(l), replica.MaxLabelBytes)
		}
	}
	if _, known := v.Nodes[n.Name]; !known && len(v.Nodes) >= maxNodes {
		return refuse(Full, "register node %s: %d nodes are registered: no more can be", n.Name, len(v.Nodes))
	}
	nodes := maps.Clone(v.Nodes)
	if nodes == nil {
		nodes = map[replica.NodeName]replica.Node{}
	}
	nodes[n.Name] = n
	after := v
	after.Nodes = nodes
	if size := Size(after); size > limit && size > Size(v) {
		return refuse(Full, "register node %s: the cluster's state would come to %d MiB, and every node must be able to read it: at most %d: end a job, or register nodes of shorter names", n.Name, size>>20, limit>>20)
	}
	return nil
}

func fitsJob(v View, c replica.CreateJob, limit uint64) error {
	have := Size(v)
	adds := jobBytes(longestName(v.Nodes), c.Layout, c.Options.WithDefaults().MinCopies) + listBytes(len(c.Lineage)+len(c.Condemned)) + originBytes(c.From)
	if have+adds > limit {
		return refuse(Full, "create job %s: %d ranks in %d groups would take %d MiB of the cluster's state, which has %d already, and every node must be able to read it: at most %d: start it with fewer ranks, or end another job first",
			c.Name, c.Layout.World, c.Layout.NumGroups(), adds>>20, have>>20, limit>>20)
	}
	return nil
}

// Size is how large the state is, encoded, in bytes, once each of its jobs is as large as it becomes.
func Size(v View) (sum uint64) {
	for name, n := range v.Nodes {
		sum += uint64(nodeSize + 2*len(name) + len(n.Addr))
		for _, a := range n.Addrs {
			sum += uint64(len(a) + 4)
		}
		for k, l := range n.Labels {
			sum += uint64(len(k) + len(l) + 4)
		}
	}
	for _, r := range v.Revoked {
		sum += uint64(len(r.Name) + len(r.Order) + len(r.Certificate) + len(r.Signature) + 32)
	}
	longest := longestName(v.Nodes)
	for _, j := range v.Jobs {
		sum += listBytes(len(j.Lineage)+len(j.Condemned)) + recipeBytes(j) + originBytes(j.From)
		if j.Phase == replica.Ended && j.Writer == nil {
			sum += uint64(1<<10 + len(j.EndReason))
		} else {
			sum += jobBytes(longest, j.Layout, j.Options.MinCopies)
			if j.Stop != nil {
				sum += uint64(len(j.Stop.Reason))
			}
		}
	}
	return sum
}

// originBytes is what an origin takes of the state.
func originBytes(o *replica.Origin) uint64 {
	if o == nil {
		return 0
	}
	return uint64(len(o.Asked) + len(o.URL) + len(o.Job) + len(o.Place) + 64)
}

func longestName(nodes map[replica.NodeName]replica.Node) int {
	longest := typical
	for name := range nodes {
		longest = max(longest, len(name))
	}
	return longest
}

// jobBytes is what an open job comes to, at most: with its plan, a durable write under way, and as many holders and mirrors of each part as it
// wants. Each number is the bytes of a record without the names in it.
func jobBytes(name int, l replica.Layout, copies int) uint64 {
	claim := 46 + name
	part := 64 + copies*(name+15)
	mirrors := 4 + copies*(name+2)
	shard := 64 + name
	each := 2*part + 2*mirrors + shard
	rank := 16 + 2*claim + each + 2*(name+15) // the last: it holds its group's part too
	group := 48 + each
	return uint64(jobSize) + uint64(l.World)*uint64(rank) + uint64(l.NumGroups())*uint64(group)
}

// listBytes is what epochs of a lineage, or generations, come to.
func listBytes(n int) uint64 { return uint64(n) * 24 }

// Short cuts the texts for people that a command holds: they say why, and nothing is decided by them.
func Short(c replica.Command) replica.Command {
	switch c := c.(type) {
	case replica.EndJob:
		c.Reason = replica.Cut(c.Reason, MaxReason)
		return c
	case replica.StopJob:
		c.Reason = replica.Cut(c.Reason, MaxReason)
		return c
	case replica.ReportFault:
		c.Fault.Detail = replica.Cut(c.Fault.Detail, maxDetail)
		return c
	case replica.Condemn:
		c.Reason = replica.Cut(c.Reason, maxDetail)
		return c
	case replica.ProveLost:
		c.Why = replica.Cut(c.Why, maxDetail)
		return c
	case replica.Grow:
		c.What = replica.Cut(c.What, maxDetail)
		return c
	case replica.ApplyPlan:
		c.Plan.Reason, c.Plan.Resumed = replica.Cut(c.Plan.Reason, MaxReason), replica.Cut(c.Plan.Resumed, 2*maxDetail)
		return c
	}
	return c
}

// CheckReason refuses a text for people that the log would not take whole.
func CheckReason(s string) error {
	if len(s) > MaxReason || replica.Cut(s, MaxReason) != s {
		return fmt.Errorf("a reason of %d bytes: want at most %d, in UTF-8", len(s), MaxReason)
	}
	return nil
}
