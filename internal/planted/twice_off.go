//go:build !chaos_twice

package planted

// Twice is a bug that make sim-control plants back: a part that lies in an arena, or is on its way there, is brought once more, and what lies twice is kept twice.
const Twice = false
