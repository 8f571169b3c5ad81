// Package launchers is the launchers of a node: which are connected, for which job, which ranks' processes they run, and what they are
// sent.
//
// A Pool has all launchers of a node, a View those of one job, and a Book what they know of that job beyond their own life. What the
// daemon knows of ranks, and what goes to the leader, it gets and does by its Owner.
//
// One goroutine, its owner's, calls every method, and no method waits. A Pool has no clock and starts nothing: now is given. The one
// thing that runs beside the owner is the store that Book.Store makes, which writes a run's files before a part.
//
// Invariants: a launcher runs at most one process for a rank, and is asked for no second one while that runs. The leader is offered no
// process that would find no session.
//
// It must not import host.
package launchers
