// Package consensus is this node's Raft voter: it hosts the job state machine (lock), replicates its commands, and watches
// itself.
//
// Invariants:
//   - A command's effect is known, refused, or reported as ErrUnknown; never guessed.
//   - Leadership says isSelf only after a barrier of this leadership: all that earlier leaders committed is applied here.
//   - A node votes only with the log that it voted with before: an empty one is refused unless the cluster is bootstrapped,
//     and a directory of another cluster or node is refused.
//   - A leader whose disk stalls hands leadership over, and falls silent if it can't (watchdog.go): hashicorp/raft goes on
//     sending heartbeats from such a leader for ever.
//
// Goroutines: Node owns one that reacts to leadership and to the watchdog, and one for each proposal under way (bounded);
// Close waits for them. hashicorp/raft runs its own; the state machine is changed by its FSM goroutine alone.
//
// It imports replica, lock and internal/wire and must not import any other package of this module: streams come from the
// caller through StreamLayer.
package consensus
