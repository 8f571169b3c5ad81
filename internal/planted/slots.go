//go:build chaos_slots

package planted

// Slots: see slots_not.go.
const Slots = true
