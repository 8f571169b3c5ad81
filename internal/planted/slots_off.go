//go:build !chaos_slots

package planted

// Slots is a bug that make sim-control plants back: a pin of a closed epoch counts though the epoch was planned over.
const Slots = false
