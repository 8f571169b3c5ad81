// Package admission is the processes of a node on their way from HELLO to their arena: process, claim, arena.
//
// A process waits where waiting helps: no leader was reached, or the fault that frees its rank is not applied yet. It is refused where
// waiting does not help. What it registers is compared with what lies here before the leader is asked for its rank. With the claim it gets
// the arena of its dead predecessor, or a fresh one.
//
// A Gate has all these processes, and a Book what their node has read of a job for them. What the daemon knows of jobs and ranks it gets
// by its Owner, and arenas by its Arenas. A process that has its arena is a rank, and the owner's.
//
// One goroutine, its owner's, calls every method, and no method waits. A Gate has no clock and starts nothing: now is given.
//
// Invariants: a claim under way has one process. A process is handed an arena only once the keeper and the list on disk have it, with that
// process as its owner.
//
// It must not import host.
package admission
