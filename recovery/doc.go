// Package recovery decides how a job comes back: which generation to resume at, where each of its parts comes from, who
// runs the ranks that were lost, where mirrors lie, and when a planned epoch opens (protocol section 6).
//
// Leader is the step function of one job that the Raft leader's driver runs: events in, effects out, in the order in which the driver
// must carry them out. It joins values that each have their own fields: known, closing, trust, seating, ending and outbox. None of them
// names the Leader. What is planned is recovery/plan's, recovery/place's and recovery/odds'. Its state is soft: a new leader starts from
// NewLeader and reaches the same decisions from the state machine and the daemons' reports, which are level-triggered.
//
// One goroutine drives a Leader; nothing here is safe for concurrent use. The package holds no clock (the driver passes monotonic time
// in), no goroutine, randomness, logger or I/O, and imports only replica, internal/planted and the packages below it besides the standard
// library, of "time" only the type Duration.
//
// Invariants: every effect may be carried out twice; every event may come twice, late, or out of order; what a Leader
// proposes cites what it knew, so that the state machine can refuse it.
package recovery
