//go:build chaos_twice

package planted

// Twice: see twice_not.go.
const Twice = true
