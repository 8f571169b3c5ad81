// Package control is what nodes and the leader say to each other: the messages of a link, one table of them (kinds.go), the link itself, the
// changes that lead from one state to the next, an operator's orders, and the types of `replicad status`.
//
// It does nothing with a message: the leader and the host do, and a test of the host holds their switches against the table. It
// imports replica and internal/wire only.
package control
