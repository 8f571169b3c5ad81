//go:build chaos_clocks

package planted

// Clocks: see clocks_off.go.
const Clocks = true
