//go:build chaos_incarnation

package planted

// Incarnation: see incarnation_off.go.
const Incarnation = true
