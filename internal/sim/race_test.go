//go:build race

package sim

// played is how many episodes a run has, unless it is told: the race detector takes four times as long.
const played = 25

// larger are the worlds that one job in sixteen has.
var larger = []uint32{8, 8, 8}
