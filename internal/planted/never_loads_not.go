//go:build !chaos_never_loads

package planted

// NeverLoads is planted by the tag chaos_never_loads: nobody judges a process that stands still between plan and load.
const NeverLoads = false
