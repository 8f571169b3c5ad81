// Package durable is what the leader does to have a job's commits written to the durable tier: when a write is due, who writes
// which part, when a write is given up, when the next one begins, and whether what was written is still there.
//
// The room of a job lives for one term. The job's record has what a new leader needs: the newest durable generation, and the write
// that is under way.
//
// Invariant: at most one write of a job is under way, and the room proposes its end only once all parts are written and the marker is,
// or when it gives the write up.
package durable
