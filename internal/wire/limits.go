package wire

import "github.com/replicad/replicad/replica"

// Limits of what is read from a peer, a disk or the log.
const (
	// MaxBody is the largest body of a frame, in bytes, but for a snapshot of the state machine. The largest such record is a
	// plan: 64 MiB is 80,000 ranks with room to spare.
	MaxBody = 64 << 20
	// MaxState is the largest body of a snapshot, and of a view of the state, which travels in pieces: twice what the state
	// machine lets its state become.
	MaxState = 256 << 20
	// maxElements bounds an array: no message lists anything that a job could have more of than ranks, and a part of as
	// many chunks is 4 TiB at the default size.
	maxElements = replica.MaxRanks
	// maxPairs bounds a map; maps hold nodes, jobs and labels, and structs are maps of a few dozen fields.
	maxPairs = 1 << 17
	// maxNesting bounds the depth; the deepest record (a snapshot) has 8.
	maxNesting = 16
	// firstPiece is how much of a body is allocated before any of it has arrived; beyond it the buffer at most doubles
	// what was really received.
	firstPiece = 256 << 10
)
