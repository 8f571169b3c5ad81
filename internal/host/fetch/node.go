package fetch

import (
	"maps"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Node is the node around, as a request meets it on the node's one goroutine. Its methods do not wait.
type Node interface {
	// Job is false where the node does not know it any more.
	Job(replica.JobID) (room.JobView, bool)
	// Nodes are those registered. They are not the caller's to change, and not to be kept.
	Nodes() map[replica.NodeName]replica.Node
	// Relays are the nodes that fetch a part under an epoch's plan for others.
	Relays(replica.JobID, replica.Part, replica.Epoch) []replica.Holder
	// Reading is that of a place since the newest fence; nil: there was none of what lies there now.
	Reading(replica.JobID, *holding.Arena, shm.Place) Reading
	// Take takes a place of an arena for a part.
	Take(replica.JobID, *holding.Arena, replica.Manifest) (shm.Place, *shm.Staging, error)
	// Spoiled takes down which part of a plan is lost with a bad copy, in memory or on disk.
	Spoiled(job replica.JobID, lost replica.Held, disk bool)
	// GivenUp takes down that a bad copy is gone from its arena.
	GivenUp(replica.JobID, holding.Copy)
	// Corrupt passes on which nodes sent bytes of a copy that do not hash to its digests.
	Corrupt(control.CorruptCopy, []replica.NodeName)
}

// Request is what a fetch asks of its node. What is to be known is in its fields, and what was found is left there.
type Request interface{ Serve(Node) }

// Reading is one of a place, which may still be under way.
type Reading interface {
	Done() <-chan struct{}
	Good() bool // once it is done
}

// copyWanted asks whether an arena holds a part.
type copyWanted struct {
	job        replica.JobID
	arena      *holding.Arena
	part       replica.Part
	generation replica.Generation
	root       replica.Digest

	at    holding.Copy
	found bool
}

func (q *copyWanted) Serve(n Node) {
	v, _ := n.Job(q.job)
	if q.at, q.found = v.Find(q.arena, q.part, q.generation, q.root); q.at.Arena != q.arena {
		q.found = false
	}
}

// relaysWanted asks who fetches a part of a plan for others, and where everybody is.
type relaysWanted struct {
	job   replica.JobID
	part  replica.Part
	epoch replica.Epoch

	holders []replica.Holder
	nodes   map[replica.NodeName]replica.Node
}

func (q *relaysWanted) Serve(n Node) {
	q.holders, q.nodes = n.Relays(q.job, q.part, q.epoch), maps.Clone(n.Nodes())
}

// readingWanted asks for the reading of a place since the newest fence.
type readingWanted struct {
	job   replica.JobID
	arena *holding.Arena
	place shm.Place

	reading Reading
}

func (q *readingWanted) Serve(n Node) { q.reading = n.Reading(q.job, q.arena, q.place) }
