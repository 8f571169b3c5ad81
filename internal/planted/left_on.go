//go:build chaos_left

package planted

// Left: see left_off.go.
const Left = true
