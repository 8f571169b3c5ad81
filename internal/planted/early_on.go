//go:build chaos_early

package planted

// Early: see early_off.go.
const Early = true
