//go:build race

package sim

// played is how many episodes a run has, unless it is told: the race detector takes four times as long.
const played = 25
