// Package node is the composition root of a daemon: the only place where two adaptors meet. It wires identity, keeper,
// endpoint, Raft, gossip, rank sessions and the durable tier to the two owners of state: the host (package host), which is this
// node's side of every job, and the leader (package leader).
//
// What belongs to the daemon alone is here too: the operator's socket, the probes of other nodes, the link to the leader, and the
// checks of its directories and certificates.
package node
