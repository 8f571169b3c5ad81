//go:build !chaos_twice

package planted

// Twice is planted by the tag chaos_twice: a mirror is given one part twice, by its maker's push and by its own fetch, and has no place for any candidate.
const Twice = false
