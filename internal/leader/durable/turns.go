package durable

import (
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// turnAgain lies between two words to a node that it is its turn: one may be lost with a link.
const turnAgain = 5 * time.Second

// Turns are the nodes that may write now: the first few of those that have not written all their parts, in the order in which the write names them. A
// leader who has not heard yet what is written lets nobody begin whom the former one would not have.
func Turns(shards []replica.Shard, written func(replica.Part) bool, atOnce int) (nodes []replica.NodeName) {
	for _, s := range shards {
		if len(nodes) == atOnce {
			break
		}
		if !written(s.Part) && !slices.Contains(nodes, s.Node) {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// Turns tells whether the nodes that hold the ranks of the job take turns in writing.
func (r *Room) Turns() bool {
	if r.job == nil {
		return false
	}
	nodes := map[replica.NodeName]bool{}
	for _, c := range r.job.Ranks {
		nodes[c.Node] = true
	}
	return len(nodes) > r.writers
}

// turns tells nodes that it is their turn.
func (r *Room) turns(now time.Duration) {
	w := r.job.Writer
	if !w.Turns {
		return
	}
	for _, n := range Turns(w.Shards, func(p replica.Part) bool { _, ok := r.write.parts[p]; return ok }, r.writers) {
		if at, told := r.write.turns[n]; !told || now-at >= turnAgain {
			r.write.turns[n] = now
			r.do(Turn{n, control.WriteTurn{Job: r.job.ID, Number: w.Number}})
		}
	}
}

// nextTurn is when a node is to be told again.
func (r *Room) nextTurn() (next time.Duration, ok bool) {
	for _, at := range r.write.turns {
		if at += turnAgain; !ok || at < next {
			next, ok = at, true
		}
	}
	return next, ok
}
