//go:build chaos_never_loads

package planted

// NeverLoads: see never_loads_not.go.
const NeverLoads = true
