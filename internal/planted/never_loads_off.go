//go:build !chaos_never_loads

package planted

// NeverLoads is a bug that make sim-control plants back: nothing bounds how long a rank may take to load what was planned.
const NeverLoads = false
