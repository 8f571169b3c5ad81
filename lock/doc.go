// Package lock holds the rules by which a job moves: the replicated state machine (claims, epochs, faults, fences, plans,
// commits, disputes), the leader's rule that decides when a generation is complete (Committer), and the rules of each node
// (what to capture, what to keep, which word may follow which).
//
// State is what Raft replicates: Apply takes one command of the log and gives the same answer on every voter. Committer is
// soft state of one leader in one term; a new leader starts afresh, from what nodes answer to its own candidates. Whoever
// drives either owns it: nothing here is safe for concurrent use, except that a View and every Job in it may be read by
// anyone, as they are never written again.
//
// Invariants (protocol sections 2, 5 and 6):
//   - epochs, incarnations and, within an epoch, committed steps only rise; what names an older one changes nothing;
//   - at most one epoch is open, it is the newest, and only a plan that cites the job's last change creates the next;
//   - a commit or Resume names every part, and for each enough distinct nodes that are neither at fault nor quarantined;
//   - a command is applied whole or refused whole, and a repeated one is harmless.
//
// It is pure: no goroutine, clock, randomness, logger or I/O, and it imports only replica and internal/planted besides the standard library; it
// must not import "time", "net", "os", "sync" or "math/rand".
package lock
