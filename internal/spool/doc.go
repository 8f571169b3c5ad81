// Package spool holds parts of a node's durable writes between memory and the store, in files on a local disk or in host memory. A slot is free as
// soon as its part is copied, however long the store takes.
//
// Invariants: what is under way never takes more than the bounds. A file goes when its write ends; what a daemon's death left goes at the next start.
// No call waits for the disk beyond its context: one that hangs is abandoned with a buffer of its own.
//
// The package knows no job. It must not import the store.
package spool
