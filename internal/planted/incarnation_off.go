//go:build !chaos_incarnation

package planted

// Incarnation is a bug that make sim-control plants back: a claim keeps its node's former incarnation when the node is registered anew.
const Incarnation = false
