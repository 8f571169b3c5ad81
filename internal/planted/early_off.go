//go:build !chaos_early

package planted

// Early is a bug that make sim-control plants: ranks are told that a generation is committed once their own node has pinned it. The log is as
// it should be: only what ranks were told shows it.
const Early = false
