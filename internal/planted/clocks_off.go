//go:build !chaos_clocks

package planted

// Clocks is a bug that make sim-control plants back: each leader counts from its own beginning how long something has lasted.
const Clocks = false
