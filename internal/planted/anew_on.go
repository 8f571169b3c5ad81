//go:build chaos_anew

package planted

// Anew: see anew_off.go.
const Anew = true
