//go:build chaos_unasked

package planted

// Unasked: see unasked_off.go.
const Unasked = true
