//go:build chaos_incarnation

package planted

// Incarnation: see incarnation_not.go.
const Incarnation = true
