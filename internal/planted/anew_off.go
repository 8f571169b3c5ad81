//go:build !chaos_anew

package planted

// Anew is a bug that make sim-control plants back: each new leader names a candidate of its own, and the pushes of the one before end.
const Anew = false
