//go:build !race

package sim

// played is how many episodes a run has, unless it is told.
const played = 100
