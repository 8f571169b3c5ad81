//go:build chaos_left

package planted

// Left: see left_not.go.
const Left = true
