// Package node is the composition root of a daemon: the only place where two adaptors meet. It wires identity, keeper,
// arenas, the endpoint, Raft, gossip, rank sessions, transfers and the durable tier, and carries out what the rules in
// lock and recovery return.
//
// One goroutine owns this node's side of every job, the member (member.go): rank sessions, arenas, fences, pins, restores, mirrors,
// launchers. It speaks with the leader (package leader) only through a link, whether that is on another node or on this one.
// Everything that takes time (hashing, transfers, disk) runs in goroutines that post one event back to the member.
//
// Node to leader speech is level-triggered: reports are full accounts and views are full states, so losing a link, a
// daemon or a leader costs nothing but sending them again.
package node
