//go:build chaos_twice

package planted

// Twice: see twice_off.go.
const Twice = true
