//go:build !race

package sim

// played is how many episodes a run has, unless it is told.
const played = 100

// larger are the worlds that one job in sixteen has.
var larger = []uint32{8, 16, 64}
