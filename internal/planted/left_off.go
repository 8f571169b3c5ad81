//go:build !chaos_left

package planted

// Left is a bug that make sim-control plants back: a mirror that is adopted keeps what its dead daemon was writing.
const Left = false
