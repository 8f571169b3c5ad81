// Package leader is the Raft leader's side of every job: soft state (candidates and pins, recovery, the rendezvous), what it proposes, and
// what it tells the nodes. It exists on every voter, and has work while its log says that this node leads.
//
// One goroutine (Run) owns all mutable state. It meets the nodes through links alone (Serve), the same frames whether the node is another
// one or this one, and the world through the interfaces Log and Tier. Whatever takes time runs beside it and posts one event back.
package leader
