// Package replica is replicad's vocabulary: what a job, rank, replica group, region, part, generation, epoch, position,
// manifest, command and plan are, and the rules by which a part is valid and retained. Everything above speaks in these types.
//
// It is plain data and pure functions: no goroutine, clock, randomness, logger or I/O. It imports only the standard
// library and must not import "time", "net", "os", "sync" or "math/rand" (internal/importwall checks that).
// The words are those of the design: see docs/design.md, "Words".
package replica
