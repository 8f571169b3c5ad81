//go:build !chaos_unasked

package planted

// Unasked is a bug that make sim-control plants back: a voter with an empty log that is told to begin a cluster begins one, and asks nobody whether
// there is one.
const Unasked = false
