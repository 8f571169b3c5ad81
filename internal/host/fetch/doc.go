// Package fetch makes parts of a plan lie sealed in arenas of a node: from where they lie already, from their holders, or from disk.
//
// A fetch takes seconds, so it runs beside its node. What it must know of the node, and what it changes there, goes through requests. The
// node's one goroutine serves each against the state of that moment. A Fetcher keeps nothing between two of them.
//
// It must not import host.
package fetch
