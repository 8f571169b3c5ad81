//go:build chaos_heir

package planted

// Heir: see planted.go.
const Heir = true
