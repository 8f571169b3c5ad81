//go:build !chaos_left

package planted

// Left is planted by the tag chaos_left: what a dead daemon was writing into a mirror stays there: its slot is COPYING for good.
const Left = false
