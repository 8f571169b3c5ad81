// Package node is the composition root of a daemon: the only place where two adaptors meet. It wires identity, keeper,
// arenas, the endpoint, Raft, gossip, rank sessions, transfers and the durable tier, and carries out what the rules in
// lock and recovery return.
//
// Two goroutines own all mutable state. The member (member.go) owns this node's side of every job: rank sessions, arenas,
// fences, pins, restores, mirrors, launchers. The leader (leader.go) exists on every voter, and has work while Raft says
// that this node leads: soft state per job (candidates and pins, recovery, rendezvous), proposals, views for the nodes.
// They talk only through a link (link.go): the same frames, whether the leader is another node or this one. Everything
// that takes time (hashing, transfers, disk, proposals) runs in goroutines that post one event back to their owner.
//
// Node to leader speech is level-triggered: reports are full accounts and views are full states, so losing a link, a
// daemon or a leader costs nothing but sending them again.
package node
