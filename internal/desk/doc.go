// Package desk is the daemon's half of the rendezvous; internal/rendezvous is the leader's.
//
// A Desk takes to the leader what the processes of this node ask, and answers them. What they contribute it keeps until the epoch closes:
// it brings that to each new leader, and records it for the daemon that comes after this one (decision D23).
//
// One goroutine, its owner's, calls every method of a Desk, and no method waits. A Desk has no clock and starts nothing. What takes time is its
// Owner's to do, and the end of that comes back to Handle as an Event. A test can therefore drive a desk and a leader without a socket.
//
// Invariants: a process hears that its contribution was taken only after the keeper has the record, where there are a keeper and memory for
// it. Of an epoch that Fence named nothing is kept, and nobody waits in it. What a rank contributes to an epoch is bounded.
//
// It must not import session, host or leader.
package desk
