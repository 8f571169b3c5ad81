//go:build chaos_never_loads

package planted

// NeverLoads: see never_loads_off.go.
const NeverLoads = true
