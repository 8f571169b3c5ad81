// Package spool holds parts of a node's durable writes between memory and the store, in files on a local disk or in host memory. A slot is free as
// soon as its part is copied, however long the store takes.
//
// Invariants: what is under way never takes more than the bounds. A file goes when its write ends. What a
// daemon's death left with a note is kept for a day, until a write of its job begins, or until its room is needed: a resume may finish that write.
// No call waits for the disk beyond its context: one that hangs is abandoned with a buffer of its own.
//
// The package knows no job. It must not import the store.
package spool
