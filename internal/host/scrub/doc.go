// Package scrub reads what lies sealed on a node again, at a bounded rate, and looks after the copies that a node has lost.
//
// A flipped bit is found while other copies exist, not by the recovery that needs this one. A copy that fails its digests is given up. The
// leader then corrects its record of who holds the part, and the part is fetched again from another holder, into the arena that has lost it.
//
// A Room starts nothing, has no clock, and never waits. One goroutine, its owner's, calls it: Learn takes an event, Step returns what is to be done
// now, Next is when to call Step again.
//
// Invariants: one reading and one fetch of a part into an arena are under way at most. Nothing is read, and no fetch goes on, while a job recovers.
// A report is repeated until the job's record says the same as the memory of this node.
//
// It must not import host.
package scrub
