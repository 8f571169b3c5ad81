// Package rank is one rank of a job on its node: one process in one life, and the arena that it writes.
//
// It is owned by its job (package job), and belongs to the goroutine of the node. It reads no clock, asks nobody, and decides nothing
// about the job: what it finds it returns. All that it sends goes to its own process.
package rank
