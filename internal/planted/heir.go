//go:build chaos_heir

package planted

// Heir: see heir_not.go.
const Heir = true
