// Package writer writes the shards of durable generations that a node is asked for, and their commit markers.
//
// A Room starts nothing, has no clock, and never waits. One goroutine, its owner's, calls it: Learn takes an event, Step returns what is to be done
// now, Next is when to call Step again. A Write runs beside the owner.
//
// Invariants: each shard of a durable write is begun once. A Write that has ended reads nothing more from memory. A shard that was reported as failed
// is never reported as written, so no marker names its file.
//
// It must not import host.
package writer
