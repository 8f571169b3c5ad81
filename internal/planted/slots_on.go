//go:build chaos_slots

package planted

// Slots: see slots_off.go.
const Slots = true
