//go:build chaos_afresh

package planted

// Afresh: see afresh_off.go.
const Afresh = true
